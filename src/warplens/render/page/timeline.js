/**
 * The timeline: overview, ruler, lanes.
 * In: a Model, the view, the theme. Out: what its canvases show, drawn once a frame at most; what lies under a point.
 */

import { headAt } from "./arrows.js";
import { byId } from "./dom.js";
import { counted, grouped, rangesOf, shortNs } from "./format.js";
import { firstNotBefore } from "./model.js";
import { drawOverlay, drawRuler } from "./overlay.js";
import { Overview, sharesOf } from "./overview.js";
import { Pyramid } from "./pyramid.js";
import { Layout } from "./rows.js";
import { Strips } from "./strips.js";
import { ROW_HEIGHTS } from "./view.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./overlay.js").Hover} Hover */
/** @typedef {import("./overlay.js").Mark} Mark */

const SLACK_PIXELS = 4;
const STRIPS_AT_FIRST = 9;

export class Timeline {
  /**
   * @param {Model} model
   * @param {import("./view.js").View} view
   * @param {import("./theme.js").Theme} theme
   */
  constructor(model, view, theme) {
    this.model = model;
    this.view = view;
    this.theme = theme;
    this.strips = new Strips(model);
    this.payloads = "";
    /** @type {import("./arrows.js").Head[]} where the arrows just drawn end */
    this.heads = [];
    /** @type {Hover} */
    this.hover = null;
    this.overview = new Overview();
    this.marks = marksOf(model);
    this.canvases = Object.fromEntries(["overview", "ruler", "gutter", "pixels", "strokes"].map((id) => [id, byId(id)]));
    this.contexts = Object.fromEntries(
      Object.entries(this.canvases).map(([id, canvas]) => [id, canvas.getContext("2d", { alpha: id !== "pixels" })]),
    );
    this.width = this.height = 1;
    this.scale = 1;
    this.pending = false;
    this.layout = new Layout(model, this.filters(), view.rowHeight);
  }

  /** The filters of the view as tests. */
  filters() {
    const { launch, sm, block, warp } = this.view.filters;
    return {
      launch: launch === "" || launch === "all" ? null : Number(launch),
      sm: rangesOf(sm) ?? null,
      block: rangesOf(block) ?? null,
      warp: rangesOf(warp) ?? null,
    };
  }

  /** The launch that is looked at; null for all. */
  get launch() {
    return this.filters().launch;
  }

  /** Rows anew, after a change of filters or of heights; the row in the middle stays there. */
  arrange() {
    const middle = this.layout.rowAt(this.view.y + this.height / 2);
    const before = middle < 0 ? null : this.layout.topOf(middle);
    this.layout = new Layout(this.model, this.filters(), this.view.rowHeight);
    this.#pass();
    const after = before === null ? null : this.layout.topOf(middle);
    if (before !== null && after !== null) this.view.y += after - before;
    byId("scrolled").style.height = `${this.layout.height}px`;
    byId("empty").hidden = this.layout.lane.length > 0;
    this.scrollTo(this.view.y);
  }

  /** Which spans the filter of payloads lets through, after a change of it. */
  #pass() {
    const { model, strips } = this;
    const { payload } = this.view.filters;
    if (payload === this.payloads) return;
    this.payloads = payload;
    const test = rangesOf(payload) ?? null;
    strips.passing = test && passingOf(model, test);
    strips.pyramid = new Pyramid(model, strips.passing);
  }

  /** Window and overview of the launch that is looked at. */
  look() {
    const { start, time, lane } = this.model.blocks;
    const launch = this.launch;
    let [low, high] = [Infinity, -Infinity];
    for (let b = 0; b < start.length; b++) {
      if (launch !== null && this.model.lanes.launch[lane[b]] !== launch) continue;
      low = Math.min(low, start[b]);
      high = Math.max(high, start[b] + time[b]);
    }
    this.view.limits = low <= high ? [low, Math.max(high, low + 1)] : [0, 1];
    this.overview.shares = sharesOf(this.model, launch, this.view.limits[0], this.view.limits[1]);
    this.overview.drawn = "";
    this.draw();
  }

  /** Row heights that show some SMs at once, for a page that is opened without a view. */
  firstHeight() {
    const strips = this.layout.lane.length || 1;
    const rows = this.layout.row.length / strips;
    const room = this.height / Math.min(strips, STRIPS_AT_FIRST) - 14;
    return [...ROW_HEIGHTS].reverse().find((height) => height <= 18 && height * rows <= room) ?? ROW_HEIGHTS[1];
  }

  /** @param {number} y */
  scrollTo(y) {
    this.view.y = Math.min(Math.max(y, 0), Math.max(this.layout.height - this.height, 0));
    const bar = byId("scroll");
    if (Math.abs(bar.scrollTop - this.view.y) >= 1) bar.scrollTop = this.view.y;
    this.draw();
  }

  /** Takes the size of the window. */
  resize() {
    this.scale = devicePixelRatio || 1;
    for (const canvas of Object.values(this.canvases)) {
      canvas.width = Math.max(Math.round(canvas.clientWidth * this.scale), 1);
      canvas.height = Math.max(Math.round(canvas.clientHeight * this.scale), 1);
    }
    this.width = Math.max(this.canvases.pixels.clientWidth, 1);
    this.height = Math.max(this.canvases.pixels.clientHeight, 1);
    for (const [id, context] of Object.entries(this.contexts)) {
      if (id !== "pixels") context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    }
    this.scrollTo(this.view.y);
  }

  /** Asks for a frame. */
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.drawNow();
    });
  }

  drawNow() {
    const { view, theme, layout, model, contexts } = this;
    const paint = theme.paint(view.site, view.hidden);
    [view.from, view.to, view.y] = this.strips.draw(contexts.pixels, layout, paint, view, this.scale);
    const [origin, rate] = this.originAndRate();
    const { width, height, hover, marks } = this;
    const { passing } = this.strips;
    const scene = { model, view, layout, theme, hover, marks, passing, origin, rate, width, height };
    this.heads = drawOverlay(contexts.strokes, scene);
    drawRuler(contexts.ruler, scene);
    this.overview.draw(contexts.overview, theme, view, this.canvases.overview.clientWidth, this.canvases.overview.clientHeight);
    this.gutter();
  }

  /** Begin and clock rate of the launch that is looked at (of the first where it is all of them). */
  originAndRate() {
    const launch = this.launch;
    const { launches } = this.model.facts;
    const row = launches.find((/** @type {any} */ l) => l.launch === launch) ?? launches[0];
    return [this.view.limits[0], row?.cycles_per_ns ?? 0];
  }

  gutter() {
    const { layout, view, theme, model, height } = this;
    const context = this.contexts.gutter;
    context.clearRect(0, 0, 64, height);
    context.textBaseline = "middle";
    context.textAlign = "right";
    let named = NaN;
    let low = -20;
    for (let strip = Math.max(layout.stripAt(view.y), 0); strip < layout.lane.length; strip++) {
      const y = layout.top[strip] - view.y;
      if (y > height) break;
      const sm = model.lanes.sm[layout.lane[strip]];
      const at = Math.max(y + layout.bar / 2, 7);
      if (sm !== named && at - low >= 13) {
        context.font = theme.font(12, "600");
        context.fillStyle = theme.ink;
        context.fillText(sm < 0 ? "SM ?" : `SM ${sm}`, 58, at);
        low = at;
      }
      named = sm;
      if (layout.rowHeight < 11) continue;
      context.font = theme.font(10);
      context.fillStyle = theme.dim;
      for (let place = layout.first[strip]; place < layout.first[strip + 1]; place++) {
        const middle = y + layout.bar + (place - layout.first[strip] + 0.5) * layout.rowHeight;
        const row = layout.row[place];
        if (middle > 6 && middle - low >= 12 && middle < height && !model.rows.level[row]) context.fillText(`w${model.rows.warp[row]}`, 58, middle);
      }
    }
  }

  /**
   * What lies under a point of the stage.
   * @param {number} x
   * @param {number} y
   * @returns {NonNullable<Hover>}
   */
  at(x, y) {
    const time = this.timeAt(x);
    const strip = this.layout.stripAt(y + this.view.y);
    const row = this.layout.rowAt(y + this.view.y);
    const found = row < 0 ? -1 : this.model.spanAt(row, time, (SLACK_PIXELS * this.view.span) / this.width);
    const span = found >= 0 && this.shown(found) ? found : -1;
    return { x, y, strip, row, span, head: headAt(this.heads, x, y) };
  }

  /** @param {number} x */
  timeAt(x) {
    return this.view.from + (x / this.width) * this.view.span;
  }

  /**
   * The tip's text: what a pixel stands for.
   * @param {NonNullable<Hover>} hover
   */
  tip(hover) {
    const { model, layout, view } = this;
    const time = this.timeAt(hover.x);
    if (hover.head >= 0) {
      const name = model.facts.sites[model.site[hover.head]].name.slice(0, 80);
      return `the arrival: ${name}, warp ${model.rows.warp[model.rowOf(hover.head)]}\nclick to go there`;
    }
    if (hover.row < 0) {
      const block = hover.strip < 0 ? -1 : model.blockAt(layout.lane[hover.strip], time);
      if (block < 0) return "";
      const { blocks } = model;
      return `block ${blocks.block[block]}, wave ${blocks.wave[block] + 1}, ${shortNs(blocks.time[block])}`;
    }
    const perPixel = view.span / this.width;
    const from = Math.floor(hover.x) * perPixel + view.from;
    const rows = this.rowsUnder(hover);
    const count = rows.reduce((sum, row) => sum + model.countBetween(row, from, from + perPixel), 0);
    const merged = count > 1 ? `\nthis pixel stands for ${counted(count, "span")}${rows.length > 1 ? ` of ${rows.length} rows` : ""}` : "";
    if (hover.span < 0) return `warp ${model.rows.warp[hover.row]}: no span${merged}`;
    const { name } = model.facts.sites[model.site[hover.span]];
    const ns = model.end[hover.span] - model.start[hover.span];
    return `${name.slice(0, 80)}\n${grouped(model.cycles[hover.span])} cycles · ${shortNs(ns)} · warp ${model.rows.warp[hover.row]}${merged}`;
  }

  /**
   * Rows that share the pixel under a point.
   * @param {NonNullable<Hover>} hover
   */
  rowsUnder(hover) {
    const { layout, view } = this;
    if (layout.rowHeight >= 1) return [hover.row];
    const from = layout.first[hover.strip];
    const begin = layout.top[hover.strip] + layout.bar - view.y;
    const pixel = Math.floor(hover.y);
    const rows = [];
    for (let place = from; place < layout.first[hover.strip + 1]; place++) {
      if (Math.floor(begin + (place - from) * layout.rowHeight) === pixel) rows.push(layout.row[place]);
    }
    return rows.length ? rows : [hover.row];
  }

  /**
   * Whether the filters let a span through.
   * @param {number} span
   */
  shown(span) {
    const { passing } = this.strips;
    if (passing && !passing[span]) return false;
    if (this.view.hidden.has(this.model.site[span]) || this.layout.topOf(this.model.rowOf(span)) === null) return false;
    return this.layout.ofBlocks(span);
  }

  /**
   * Brings a span into the window; nearer where it would be a few pixels wide and `near` asks for it.
   * @param {number} span
   * @param {boolean} near
   */
  bring(span, near) {
    const { model, view, layout } = this;
    const [start, end] = [model.start[span], model.end[span]];
    const duration = Math.max(end - start, 1);
    if (near) view.show(start - duration * 2, end + duration * 2);
    else if (start < view.from || end > view.to) {
      const span = Math.max(view.span, duration * 1.4);
      view.show((start + end - span) / 2, (start + end + span) / 2);
    }
    const top = layout.topOf(model.rowOf(span));
    if (top === null) return;
    if (top < view.y + 20 || top + layout.rowHeight > view.y + this.height - 10) this.scrollTo(top - this.height / 2);
  }
}

/**
 * Spans with a payload that passes.
 * @param {Model} model
 * @param {(value: number) => boolean} test
 */
export function passingOf({ payload, payloadValid, size }, test) {
  const out = new Uint8Array(size);
  if (payload && payloadValid) for (let i = 0; i < size; i++) out[i] = payloadValid(i) && test(payload(i)) ? 1 : 0;
  return out;
}

/**
 * Where the problems that name a block happened.
 * @param {Model} model
 * @returns {Mark[]}
 */
export function marksOf(model) {
  const { blocks, rows, facts } = model;
  /** @type {Mark[]} */
  const marks = [];
  if (!facts.problems.some((/** @type {any} */ p) => p.block !== null)) return marks;
  const places = new Map();
  blocks.block.forEach((/** @type {number} */ number, /** @type {number} */ b) =>
    places.set(`${model.lanes.launch[blocks.lane[b]]}/${number}`, b),
  );
  const firstRow = new Map();
  rows.lane.forEach((/** @type {number} */ lane, /** @type {number} */ r) => {
    const key = `${lane}/${rows.warp[r]}`;
    if (!firstRow.has(key)) firstRow.set(key, r);
  });
  facts.problems.forEach((/** @type {any} */ problem, /** @type {number} */ index) => {
    const block = places.get(`${problem.launch}/${problem.block}`);
    if (block === undefined) return;
    const lane = blocks.lane[block];
    const row = problem.warp === null ? -1 : (firstRow.get(`${lane}/${problem.warp}`) ?? -1);
    const time = timeOf(model, block, row, problem.sequence) ?? blocks.start[block];
    marks.push({ row, lane, time, problem: index, severe: problem.severity !== "note" });
  });
  return marks;
}

/**
 * Begin of the first span of a block in a row at or after a record; null where there is none.
 * @param {Model} model
 * @param {number} block
 * @param {number} row
 * @param {number | null} sequence
 */
function timeOf(model, block, row, sequence) {
  if (row < 0) return null;
  const { rowSegment, segmentBlock, segmentSpan, blocks } = model;
  for (let s = rowSegment[row]; s < rowSegment[row + 1]; s++) {
    if (segmentBlock[s] !== block) continue;
    if (sequence === null) return model.start[segmentSpan[s]];
    const i = model.firstOfSequence(s, sequence);
    return i < segmentSpan[s + 1] ? model.start[i] : model.end[i - 1];
  }
  const after = firstNotBefore(model.start, model.rowSpan[row], model.rowSpan[row + 1], blocks.start[block]);
  return after < model.rowSpan[row + 1] ? blocks.start[block] : null;
}
