/**
 * The pixels of the timeline without a browser: WARPLENS_PAGE and WARPLENS_CASES as in modules.test.mjs.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const load = (name) => import(pathToFileURL(`${process.env.WARPLENS_PAGE}/${name}`).href);
const { bytesOf, inflate } = await load("codec.js");
const { Model, sums } = await load("model.js");
const { Layout } = await load("rows.js");
const { Strips, TILE } = await load("strips.js");
const { rangesOf } = await load("format.js");
const { Pyramid } = await load("pyramid.js");

const WIDTH = 301;
const HEIGHT = 157;
const LANE = 7;
const PAGE = 8;
const all = { launch: null, sm: null, block: null, warp: null };

async function opened(name) {
  const text = readFileSync(`${process.env.WARPLENS_CASES}/${name}`, "utf8");
  const [, packed] = /id="facts-data">([^<]*)</.exec(text);
  const facts = JSON.parse(new TextDecoder().decode(await inflate(bytesOf(packed))));
  const streams = [...text.matchAll(/class="stream">([^<]*)</g)].map((found) => inflate(bytesOf(found[1])));
  return new Model(facts, await Promise.all(streams));
}

/** One lane with a block over all of it, rows of spans given as [start, end, site]. Site 3 waits. */
function small(rows, sites = 4) {
  const spans = rows.flat();
  const first = sums(rows.map((row) => row.length));
  return Object.assign(Object.create(Model.prototype), {
    facts: { sites: Array.from({ length: sites }, () => ({})), launches: [{ launch: 0 }] },
    size: spans.length,
    start: Uint32Array.from(spans, (s) => s[0]),
    end: Uint32Array.from(spans, (s) => s[1]),
    site: Uint8Array.from(spans, (s) => s[2]),
    rowSpan: first,
    rowSegment: Uint32Array.from(rows.keys(), (r) => r),
    segmentSpan: first,
    segmentBlock: rows.map(() => 0),
    lanes: { launch: [0], sm: [5], slot: [0] },
    rows: { lane: rows.map(() => 0), warp: rows.map((_, i) => i), level: rows.map(() => 0) },
    blocks: { block: [0], lane: [0], start: [0], time: [0], wave: [0] },
    laneBlock: Uint32Array.of(0),
    laneFirst: Uint32Array.of(0, 1),
  });
}

function paintOf(sites, hidden = -1) {
  const site = Uint32Array.from({ length: sites }, (_, i) => (i === hidden ? 0 : 100 + i));
  return { site, hatch: site.map((color, i) => (i === 3 ? 99 : color)), bars: Uint32Array.of(5, 6), lane: LANE, page: PAGE };
}

function canvas(width = WIDTH, height = HEIGHT) {
  return {
    canvas: { width, height },
    createImageData: () => ({ data: new Uint8Array(4 * width * height) }),
    putImageData: () => {},
  };
}

/** Numbers from 0 to 1, the same each time. */
function numbers(seed) {
  return () => (seed = (seed * 48271) % 2147483647) / 2147483647;
}

/** A row of spans of durations from 0 on, some with gaps, some beginning 2 ns early; a part is 50 times as dense. */
function bursts(seed, count) {
  const random = numbers(seed);
  let [last, until] = [0, 0];
  return Array.from({ length: count }, (_, i) => {
    const scale = i > count / 4 && i < count / 2 ? 2 : 100;
    const kind = random();
    const begin = kind < 0.2 ? until + Math.floor(random() * scale) : kind < 0.4 ? Math.max(until - 2, last) : until;
    const end = begin + Math.floor(random() * scale);
    [last, until] = [begin, Math.max(end, until)];
    return [begin, end, Math.floor(random() * 4)];
  });
}

/** What is on a line where each span has a pixel at least, and of those that share one the last is seen. */
function lineOf(model, row, picture, paint) {
  const line = new Array(WIDTH).fill(LANE);
  const column = (time) => Math.floor((time - picture.origin) * picture.perNs + 0.5) - picture.left;
  for (let i = model.rowSpan[row]; i < model.rowSpan[row + 1]; i++) {
    const [x0, x1] = [column(model.start[i]), column(model.end[i])];
    const color = paint.site[model.site[i]];
    if (color) for (let x = Math.max(x0, 0); x < Math.min(Math.max(x1, x0 + 1), WIDTH); x++) line[x] = color;
  }
  return line;
}

/** Moves a window about and asserts that what was moved is what is drawn whole. */
function wander(model, layout, paint, { passing = null, share = 0.3, scale = 1, steps = 40 } = {}) {
  const strips = new Strips(model);
  strips.passing = passing;
  strips.pyramid = new Pyramid(model, passing);
  const random = numbers(7);
  const context = canvas();
  const extent = Math.max(...model.end.subarray(0, 5000), model.end[model.size - 1]);
  const span = extent * share;
  let [from, y] = [extent * 0.2, 0];
  let moved = 0;
  for (let step = 0; step < steps; step++) {
    const before = strips.picture?.left;
    [from, , y] = strips.draw(context, layout, paint, { from, to: from + span, y }, scale);
    if (before !== undefined && before !== strips.picture.left) moved++;
    const shown = strips.pixels.slice();
    strips.renew();
    assert.deepEqual(shown, strips.pixels);
    from += (random() - 0.5) * span * (step % 5 ? 0.1 : 1.5);
    y = Math.min(Math.max(y + (random() - 0.4) * 60, 0), Math.max(layout.height - HEIGHT / scale, 0));
  }
  assert.ok(moved > steps / 2);
}

test("a picture that moved is the picture drawn whole, on a recording at every height of rows", async () => {
  const model = await opened("recording.html");
  const paint = paintOf(model.facts.sites.length);
  for (const height of [0.25, 1, 3, 14]) {
    for (const scale of [1, 1.25]) wander(model, new Layout(model, all, height), paint, { scale });
  }
  wander(model, new Layout(model, { ...all, block: rangesOf("0-200") }, 3), paint);
  wander(model, new Layout(model, all, 3), paintOf(model.facts.sites.length, 2), { share: 0.01 });
});

test("a picture that moved is the picture drawn whole, where spans are many a pixel and where some do not pass", () => {
  const model = small([bursts(1, 20_000), bursts(2, 9_000), [], bursts(3, 50)]);
  const passing = Uint8Array.from({ length: model.size }, (_, i) => (i % 3 ? 1 : 0));
  for (const share of [0.00005, 0.001, 0.05, 0.9]) {
    wander(model, new Layout(model, all, 3), paintOf(4), { share, steps: 300 });
    wander(model, new Layout(model, all, 3), paintOf(4), { share, passing });
  }
});

test("each span has a pixel at least, and of those that share one the last is seen", () => {
  const model = small([bursts(4, 240), bursts(5, 200), bursts(6, 40)]);
  const [layout, paint] = [new Layout(model, all, 1), paintOf(4, 1)];
  for (const [from, to] of [[-50, 16_000], [300, 6_000], [1_000, 1_040], [1_021, 1_027]]) {
    const strips = new Strips(model);
    strips.draw(canvas(), layout, paint, { from, to, y: 0 }, 1);
    for (const row of [0, 1, 2]) {
      const y = layout.topOf(row);
      assert.deepEqual([...strips.pixels.subarray(y * WIDTH, (y + 1) * WIDTH)], lineOf(model, row, strips.picture, paint));
    }
  }
});

test("where a tile has more than two spans a pixel, a group has the colour that most of its time is in", () => {
  // Groups of four spans, 10 + 1 + 1 + 4 ns, each a pixel wide.
  const rows = [Array.from({ length: 4 * WIDTH }, (_, i) => [16 * (i >> 2) + [0, 10, 11, 12][i % 4], 16 * (i >> 2) + [10, 11, 12, 16][i % 4], i % 4])];
  const model = small(rows);
  const layout = new Layout(model, all, 1);
  const strips = new Strips(model);
  strips.draw(canvas(), layout, paintOf(4), { from: 0, to: 16 * WIDTH, y: 0 }, 1);
  const line = () => new Set(strips.pixels.subarray(layout.topOf(0) * WIDTH, layout.topOf(0) * WIDTH + TILE));
  assert.deepEqual(line(), new Set([100]));
  strips.draw(canvas(), layout, paintOf(4, 0), { from: 0, to: 16 * WIDTH, y: 0 }, 1);
  assert.deepEqual(line(), new Set([LANE])); // hidden, and nothing else takes its place
  strips.passing = Uint8Array.from(rows[0], ([, , site]) => (site ? 1 : 0));
  strips.pyramid = new Pyramid(model, strips.passing);
  strips.draw(canvas(), layout, paintOf(4), { from: 0, to: 16 * WIDTH, y: 0 }, 1);
  assert.deepEqual(line(), new Set([103]));
});

test("a long span is seen in every window within it, and an instant in none beside it", () => {
  const model = small([[[0, 1_000_000_000, 2]], [[500, 500, 1]]]);
  const layout = new Layout(model, all, 1);
  const strips = new Strips(model);
  const line = (row) => new Set(strips.pixels.subarray(layout.topOf(row) * WIDTH, (layout.topOf(row) + 1) * WIDTH));
  for (const from of [900_000_000, 400, 501, 480.5]) {
    strips.draw(canvas(), layout, paintOf(4), { from, to: from + 40, y: 0 }, 1);
    assert.deepEqual(line(0), new Set([102]));
    assert.deepEqual(line(1), new Set(from === 480.5 ? [LANE, 101] : [LANE]));
  }
});

test("waits are striped where they are wide, and the stripes move with them", () => {
  const model = small([[[100, 400, 3], [400, 500, 1]]]);
  const [layout, paint, strips] = [new Layout(model, all, 8), paintOf(4), new Strips(model)];
  const striped = () => {
    const found = [];
    for (let i = 0; i < strips.pixels.length; i++) if (strips.pixels[i] === 99) found.push(i);
    return found;
  };
  strips.draw(canvas(), layout, paint, { from: 0, to: WIDTH * 2, y: 0 }, 1);
  const before = striped();
  assert.ok(before.length > 100);
  for (const at of before) assert.ok(at % WIDTH >= 50 && at % WIDTH < 200);
  strips.draw(canvas(), layout, paint, { from: 14, to: WIDTH * 2 + 14, y: 0 }, 1);
  assert.deepEqual(striped(), before.map((at) => at - 7));
});

test("a window moves by whole pixels, and a new one stands where it was asked for", () => {
  const model = small([bursts(8, 300)]);
  const [layout, paint, context, strips] = [new Layout(model, all, 3), paintOf(4), canvas(), new Strips(model)];
  const [from, to] = strips.draw(context, layout, paint, { from: 100.3, to: 100.3 + 2 * WIDTH, y: 0 }, 1);
  assert.deepEqual([from, to - from], [100.3, 2 * WIDTH]);
  const [moved] = strips.draw(context, layout, paint, { from: 103, to: 103 + 2 * WIDTH, y: 0 }, 1);
  assert.ok(Math.abs(moved - 102.3) < 1e-6); // a pixel is 2 ns
  const [zoomed] = strips.draw(context, layout, paint, { from: 103, to: 103 + WIDTH, y: 0 }, 1);
  assert.equal(zoomed, 103);
});
