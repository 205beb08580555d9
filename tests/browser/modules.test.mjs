/**
 * The page's modules without a browser. WARPLENS_PAGE is their folder; WARPLENS_CASES holds pages (*.html) and what
 * the trace says of each span of them (*.json), both written by test_modules.py.
 */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const load = (name) => import(pathToFileURL(`${process.env.WARPLENS_PAGE}/${name}`).href);
const { bytesOf, inflate, isConstant, numbersOf, readerOf } = await load("codec.js");
const { Model, below, firstAfter, firstNotBefore, sums } = await load("model.js");
const { Pyramid } = await load("pyramid.js");
const { Layout } = await load("rows.js");
const { View } = await load("view.js");
const { neighbour, nextSlowest, spreadOf } = await load("steps.js");
const { passingOf } = await load("timeline.js");
const { warpsOf } = await load("tables.js");
const { headAt } = await load("arrows.js");
const { sharesOf } = await load("overview.js");
const format = await load("format.js");
const { mixed, pixel } = await load("theme.js");

const cases = process.env.WARPLENS_CASES;
const names = readdirSync(cases).filter((name) => name.endsWith(".html"));

async function opened(name) {
  const text = readFileSync(`${cases}/${name}`, "utf8");
  const [, packed] = /id="facts-data">([^<]*)</.exec(text);
  const facts = JSON.parse(new TextDecoder().decode(await inflate(bytesOf(packed))));
  const streams = [...text.matchAll(/class="stream">([^<]*)</g)].map((found) => inflate(bytesOf(found[1])));
  return new Model(facts, await Promise.all(streams));
}

const all = { launch: null, sm: null, block: null, warp: null };

/** One lane, rows of spans given as [start, end, site]; cycles are twice the ns. */
function small(rows, sites = 4) {
  const spans = rows.flat();
  const first = sums(rows.map((row) => row.length));
  return {
    facts: { sites: Array.from({ length: sites }, (_, i) => ({ name: `s${i}` })), launches: [{ launch: 0 }] },
    size: spans.length,
    start: Uint32Array.from(spans, (s) => s[0]),
    end: Uint32Array.from(spans, (s) => s[1]),
    cycles: Uint32Array.from(spans, (s) => 2 * (s[1] - s[0])),
    site: Uint8Array.from(spans, (s) => s[2]),
    flags: null,
    rowSpan: first,
    lanes: { launch: [0], sm: [5], slot: [0] },
    rows: { lane: rows.map(() => 0), warp: rows.map((_, i) => i), level: rows.map(() => 0) },
    blocks: { block: [0], lane: [0] },
  };
}

for (const name of names) {
  test(`every field of every span of ${name} is that of the trace`, async () => {
    const model = await opened(name);
    const told = JSON.parse(readFileSync(`${cases}/${name.replace(".html", ".json")}`, "utf8"));
    const key = (s) => [s.launch, s.block, s.warp, s.sequence, s.site, s.start_ns].join("/");
    const wanted = new Map(told.map((s) => [key(s), s]));
    assert.equal(model.size, told.length);
    for (let i = 0; i < model.size; i++) {
      const s = model.span(i);
      const seen = {
        launch: s.launch,
        block: s.block,
        warp: s.warp,
        sequence: s.sequence,
        site: s.site,
        depth: s.depth,
        start_ns: String(s.startNs),
        start_cycles: String(s.startCycles),
        duration_cycles: s.durationCycles,
        duration_ns: s.durationNs,
        payload: s.payload,
        id: s.id,
        flags: s.flags,
      };
      assert.deepEqual(seen, wanted.get(key(seen)));
    }
  });

  test(`no two spans of a row of ${name} overlap by more than rounding`, async () => {
    const model = await opened(name);
    for (let row = 0; row + 1 < model.rowSpan.length; row++) {
      for (let i = model.rowSpan[row] + 1; i < model.rowSpan[row + 1]; i++) {
        assert.ok(model.start[i] >= model.end[i - 1] - 2, `row ${row}, span ${i}`);
      }
    }
  });
}

test("columns: constant planes, signed ones, and more than 32 bits; number by number the same", () => {
  const streams = [Uint8Array.of(1, 2, 3), Uint8Array.of(0, 1), Uint8Array.of(255, 0, 128)];
  for (const [column, wanted] of [
    [{ n: 3, signed: false, planes: [[0]] }, [1, 2, 3]],
    [{ n: 3, signed: true, planes: [[2]] }, [-1, 0, -128]],
    [{ n: 3, signed: true, planes: [[0], 1] }, [-129, 129, -130]],
    [{ n: 3, signed: true, planes: [[0], 0, [2]] }, [-(255 << 15) - 1, 1, -(128 << 15) - 2]],
    [{ n: 3, signed: false, planes: [[0], 1] }, [257, 258, 259]],
    [{ n: 3, signed: false, planes: [[0], 0, 1] }, [65537, 65538, 65539]],
    [{ n: 3, signed: false, planes: [0, 0, 0, 0, [0]] }, [1, 2, 3].map((x) => x * 2 ** 32)],
    [{ n: 2, signed: true, planes: [0xff, 0xff, 0xff, 0xff, 0xff] }, [-(2 ** 39), -(2 ** 39)]],
    [{ n: 2, signed: true, planes: [0xff, 0xff, 0xff, 0xff] }, [-(2 ** 31), -(2 ** 31)]],
    [{ n: 2, signed: false, planes: [0xff, 0xff, 0xff, 0xff] }, [2 ** 32 - 1, 2 ** 32 - 1]],
    [{ n: 5, signed: false, planes: [[0, 1]] }, [1, 2, 3, 0, 1]],
    [{ n: 0, signed: false, planes: [0] }, []],
  ]) {
    assert.deepEqual([...numbersOf(column, streams)], wanted);
    const read = readerOf(column, streams);
    assert.deepEqual(wanted.map((_, i) => read(i)), wanted);
  }
  assert.ok(isConstant({ n: 3, signed: false, planes: [7, 0] }, 7));
  assert.ok(!isConstant({ n: 3, signed: false, planes: [[0]] }, 1));
});

test("searches find the edges", () => {
  assert.equal(below([0, 3, 3, 7], 3), 2);
  assert.equal(below([0, 3, 3, 7], 6), 2);
  assert.equal(firstAfter([1, 2, 2, 5], 0, 4, 2), 3);
  assert.equal(firstNotBefore([1, 2, 2, 5], 0, 4, 2), 1);
  assert.equal(firstNotBefore([1, 2, 2, 5], 0, 4, 9), 4);
});

test("a group of spans takes the site that most of its time is in", () => {
  const pyramid = new Pyramid(small([[[0, 10, 1], [10, 13, 2], [13, 14, 1], [14, 20, 2], [20, 21, 3]], [[0, 5, 0]]]));
  assert.deepEqual([...pyramid.of(0)], [1, 3, 1]); // 11 of site 1, 9 of site 2; then a group of one; then both
  assert.deepEqual([...pyramid.of(1)], [0]);
});

test("a group of spans of which none passes has no site, and those that do not pass have no weight", () => {
  const rows = [[[0, 10, 1], [10, 13, 2], [13, 14, 3], [14, 20, 2], [20, 21, 3], [21, 30, 1]]];
  const pyramid = new Pyramid(small(rows), Uint8Array.of(0, 0, 1, 0, 0, 0));
  assert.deepEqual([...pyramid.of(0)], [3, 4, 3]); // of four sites: 4 is none
});

test("spans pass by their payload, and those without one do not", () => {
  const model = { payload: (i) => [3, 0, 4_000_000_000, 7][i], payloadValid: (i) => [1, 0, 1, 1][i], size: 4 };
  assert.deepEqual([...passingOf(model, format.rangesOf("0-3,4000000000"))], [1, 0, 1, 0]);
  assert.deepEqual([...passingOf(model, format.rangesOf("0x7"))], [0, 0, 0, 1]);
  assert.deepEqual([...passingOf({ ...model, payload: null }, () => true)], [0, 0, 0, 0]);
});

test("the head of an arrow is hit within a few pixels, the nearest of several", () => {
  const heads = [{ x: 10, y: 10, span: 4 }, { x: 14, y: 10, span: 5 }];
  assert.equal(headAt(heads, 13, 10), 5);
  assert.equal(headAt(heads, 9, 11), 4);
  assert.equal(headAt(heads, 30, 10), -1);
});

test("every wait of the recording has its arrival in its own block, at or before its end", async () => {
  const model = await opened("recording.html");
  let waits = 0;
  for (let i = 0; i < model.size; i++) {
    const told = model.arrivals.of(i);
    assert.equal(told !== null, [3, 5].includes(model.site[i]));
    if (!told) continue;
    waits++;
    assert.deepEqual([told.basis, told.of], ["INFERRED", 20]);
    const [wait, arrival] = [model.span(i), model.span(told.arrival)];
    assert.equal(wait.blockRow, arrival.blockRow);
    assert.equal(wait.site, arrival.site);
    assert.ok(arrival.startCycles >= wait.startCycles);
    assert.ok(arrival.startCycles <= wait.startCycles + BigInt(wait.durationCycles));
  }
  assert.equal(waits, model.size / 4);
});

test("a stretch of a row counts the spans that lie in it in part", () => {
  const model = small([[[0, 10, 1], [10, 20, 2], [25, 30, 1], [30, 30, 3]], [[0, 5, 0]]]);
  const count = (from, to) => Model.prototype.countBetween.call(model, 0, from, to);
  assert.deepEqual([count(5, 6), count(9, 11), count(20, 25), count(10, 26), count(0, 100), count(30, 31)], [1, 2, 0, 2, 4, 1]);
});

test("the label of a role becomes its warps, also where it is cut short", () => {
  const roles = { 0: "w0", 1: "w1,3,5,…", 3: "w1,3,5,…", 5: "w1,3,5,…", 7: "w1,3,5,…" };
  assert.equal(warpsOf({ roles }, "w1-19"), "1-19");
  assert.equal(warpsOf({ roles }, "w1,3,5,…"), "1,3,5,7");
  assert.equal(warpsOf({ roles }, "w0,2,4,…"), "");
  assert.equal(warpsOf({ roles }, "all"), "");
});

test("rows stand where they are looked for, at every height", () => {
  for (const height of [0.25, 1, 3, 14]) {
    const layout = new Layout(small([[[0, 1, 0]], [[0, 1, 0]], [[0, 1, 0]]]), all, height);
    for (const row of [0, 1, 2]) assert.equal(layout.rowAt(layout.topOf(row) + height / 2), row);
    assert.equal(layout.rowAt(-5), -1);
    assert.ok(layout.height >= 3 * height);
  }
});

test("filters leave out rows, and nothing may be left", () => {
  const model = small([[[0, 1, 0]], [[0, 1, 0]], [[0, 1, 0]]]);
  const one = new Layout(model, { ...all, warp: format.rangesOf("1") }, 4);
  assert.deepEqual(one.row, [1]);
  assert.equal(one.topOf(2), null);
  const none = new Layout(model, { ...all, sm: format.rangesOf("9") }, 4);
  assert.deepEqual(none.row, []);
  assert.equal(none.rowAt(3), -1);
  assert.equal(none.topOf(0), null);
});

test("zooming keeps the time under the pointer, and ends at the limits", () => {
  const view = new View();
  view.limits = [0, 1000];
  view.fit();
  view.zoom(0.1, 300);
  assert.ok(Math.abs((300 - view.from) / view.span - 0.3) < 0.01);
  for (let i = 0; i < 80; i++) view.zoom(0.5, 300);
  assert.ok(view.span >= 4 && view.from <= 300 && view.to >= 300);
  for (let i = 0; i < 80; i++) view.zoom(2, 300);
  assert.ok(view.span <= 1100 && view.from >= -61 && view.to <= 1061);
});

test("the view goes through the URL", () => {
  const view = new View();
  Object.assign(view, { from: 12.5, to: 99.25, y: 40, rowHeight: 8, selected: 7, site: 2 });
  view.hidden.add(1);
  view.filters.sm = "0-3,17";
  const other = new View();
  assert.equal(other.read(`#${view.hash()}`, 10, 4), true);
  assert.equal(other.hash(), view.hash());
});

test("a URL that makes no sense is passed over", () => {
  const view = new View();
  const text = "#t=5,1&y=-3&h=5.5&span=99&site=-1&hide=9.x.1&sm=%00";
  assert.equal(view.read(text, 10, 4), false);
  assert.deepEqual([view.selected, view.site, view.y, view.rowHeight, [...view.hidden]], [-1, null, 0, 3, [1]]);
});

test("next, previous and slowest go through the spans of a site", () => {
  const model = small([[[0, 5, 1], [5, 6, 0], [6, 9, 1]], [[0, 2, 1], [7, 8, 1]]]);
  const shown = () => true;
  const way = [];
  for (let i = neighbour(model, 1, -1, 1, shown); i >= 0; i = neighbour(model, 1, i, 1, shown)) way.push(i);
  assert.deepEqual(way, [0, 3, 2, 4]);
  const back = [];
  for (let i = neighbour(model, 1, 4, -1, shown); i >= 0; i = neighbour(model, 1, i, -1, shown)) back.push(i);
  assert.deepEqual(back, [2, 3, 0]);
  const slow = [];
  for (let i = nextSlowest(model, 1, -1, shown); i >= 0; i = nextSlowest(model, 1, i, shown)) slow.push(i);
  assert.deepEqual(slow, [0, 2, 3, 4]);
  assert.equal(neighbour(model, 1, -1, 1, (i) => i === 2), 2);
});

test("the distribution counts whole spans and finds the place of one", () => {
  const model = small([[[0, 5, 1], [5, 10, 1], [10, 30, 1], [30, 30, 1], [40, 41, 0]]]);
  model.flags = Uint8Array.of(0, 0, 0, 1, 0);
  const { count, left, below: shorter, p50, max, bars } = spreadOf(model, 1, 40);
  assert.deepEqual([count, left, shorter, p50, max], [3, 1, 2, 10, 40]);
  assert.equal(bars.reduce((a, b) => a + b), 3);
  assert.deepEqual(spreadOf(model, 2, 0).count, 0);
});

test("the overview holds all time of all warps", () => {
  const { sites, most } = sharesOf(small([[[0, 500, 1], [500, 1000, 0]], [[250, 260, 1]]]), null, 0, 1000);
  const total = (values) => values.reduce((a, b) => a + b);
  assert.ok(Math.abs(total(sites[1]) - 510 * 0.9) < 1e-3); // 900 columns over 1000 ns
  assert.ok(Math.abs(total(sites[0]) - 500 * 0.9) < 1e-3);
  assert.ok(Math.abs(most - 2) < 1e-3);
});

test("numbers are written as people read them", () => {
  assert.equal(format.shortNs(812), "812 ns");
  assert.equal(format.shortNs(5213), "5.21 us");
  assert.equal(format.grouped(1795000000000000001n), "1,795,000,000,000,000,001");
  assert.equal(format.grouped(null), "-");
  assert.equal(format.counted(1, "span"), "1 span");
  assert.equal(format.tickStep(11), 20);
  assert.equal(format.tickStep(200), 200);
  assert.equal(format.tickText(2500, 500, true), "2,500 ns");
  assert.equal(format.tickText(25000, 500, true), "25.0 us");
  assert.equal(format.tickText(0.5, 0.5, true), "0.5 ns");
  assert.equal(format.tickText(-0, 500, true), "0 ns");
});

test("ranges of numbers are read, and what is none is told", () => {
  const test_ = format.rangesOf("0-2, 7");
  assert.deepEqual([0, 2, 3, 7].map(test_), [true, true, false, true]);
  assert.equal(format.rangesOf(""), null);
  assert.equal(format.rangesOf("a"), undefined);
  assert.equal(format.rangesOf("1,,2"), undefined);
});

test("colours become pixels", () => {
  assert.equal(pixel("#102030"), 0xff302010);
  assert.equal(mixed("#000000", "#ffffff", 0.5), "#808080");
});
