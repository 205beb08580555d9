/**
 * Spans as pixels.
 * In: a Model, its pyramid, a layout and a window of time. Out: an ImageData: one line of pixels a row, copied to the
 * row's height. Where a pixel stands for several spans it takes the colour of the site that most of their time is in.
 */

import { firstAfter, firstNotBefore } from "./model.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./pyramid.js").Level} Level */
/** @typedef {import("./rows.js").Layout} Layout */
/**
 * @typedef {object} Paint
 * @property {Uint32Array} site colour of each site, as the pixels of an ImageData
 * @property {Uint32Array} hatch colour of the stripes of each site; the same as `site` where it has none
 * @property {Uint32Array} bars of blocks, by wave
 * @property {number} lane
 * @property {number} page
 */

const HATCH = 6;
const HATCHED_PIXELS = 5;

export class Strips {
  /**
   * @param {Model} model
   * @param {Level[]} levels
   */
  constructor(model, levels) {
    this.model = model;
    this.levels = levels;
    /** @type {Uint8Array | null} by span; null where all are drawn */
    this.passing = null;
    /** @type {ImageData | null} */
    this.image = null;
    this.pixels = new Uint32Array(0);
    /** Waits of the line just painted that are wide enough to hatch: begin, end, site. */
    this.waits = /** @type {number[]} */ ([]);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Layout} layout
   * @param {Paint} paint
   * @param {{from: number, to: number, y: number}} view
   * @param {number} scale device pixels a CSS pixel
   */
  draw(context, layout, paint, view, scale) {
    const { width, height } = context.canvas;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(paint.page);
    let strip = Math.max(layout.stripAt(view.y), 0);
    for (; strip < layout.lane.length && layout.top[strip] - view.y < height / scale; strip++) {
      this.#strip(layout, strip, paint, view, scale);
    }
    context.putImageData(this.image, 0, 0);
  }

  /**
   * @param {Layout} layout
   * @param {number} strip
   * @param {Paint} paint
   * @param {{from: number, to: number, y: number}} view
   * @param {number} scale
   */
  #strip(layout, strip, paint, view, scale) {
    const { width, height } = /** @type {ImageData} */ (this.image);
    const top = Math.round((layout.top[strip] - view.y) * scale);
    const barEnd = top + Math.max(2, Math.round((layout.bar - 1) * scale));
    this.#bar(layout, strip, paint, view, Math.max(top, 0), Math.min(barEnd, height));
    const begin = layout.top[strip] + layout.bar - view.y;
    const rows = layout.first[strip + 1] - layout.first[strip];
    const gap = layout.rowHeight * scale >= 5 ? Math.round(scale) : 0;
    let done = -Infinity;
    for (let k = 0; k < rows; k++) {
      const low = Math.round((begin + k * layout.rowHeight) * scale);
      const high = Math.round((begin + (k + 1) * layout.rowHeight) * scale) - gap;
      if (low <= done || high <= 0) continue; // several rows share this pixel: the first is shown
      if (low >= height) break;
      done = low;
      const first = Math.max(low, 0);
      const last = Math.min(Math.max(high, low + 1), height);
      const line = this.pixels.subarray(first * width, (first + 1) * width);
      line.fill(paint.lane);
      this.waits.length = 0;
      this.#line(line, layout.row[layout.first[strip] + k], layout.blocks, paint, view);
      for (let y = first + 1; y < last; y++) this.pixels.copyWithin(y * width, first * width, (first + 1) * width);
      if (last - first >= 3) this.#hatch(first, last, paint);
    }
  }

  /**
   * Residency: a bar a block, its grey by wave.
   * @param {Layout} layout
   * @param {number} strip
   * @param {Paint} paint
   * @param {{from: number, to: number}} view
   * @param {number} first
   * @param {number} last
   */
  #bar(layout, strip, paint, view, first, last) {
    if (last <= first) return;
    const { width } = /** @type {ImageData} */ (this.image);
    const perNs = width / (view.to - view.from);
    const { start, time, wave } = this.model.blocks;
    const line = this.pixels.subarray(first * width, (first + 1) * width);
    for (const block of this.model.blocksOfLane(layout.lane[strip])) {
      if (start[block] > view.to || start[block] + time[block] < view.from) continue;
      const x0 = Math.max(Math.round((start[block] - view.from) * perNs), 0);
      const x1 = Math.min(Math.max(Math.round((start[block] + time[block] - view.from) * perNs) - 1, x0 + 1), width);
      const color = layout.blocks && !layout.blocks.has(block) ? paint.lane : paint.bars[wave[block] % paint.bars.length];
      line.fill(color, x0, x1);
    }
    for (let y = first + 1; y < last; y++) this.pixels.copyWithin(y * width, first * width, (first + 1) * width);
  }

  /**
   * @param {Uint32Array} line
   * @param {number} row
   * @param {Set<number> | null} blocks
   * @param {Paint} paint
   * @param {{from: number, to: number}} view
   */
  #line(line, row, blocks, paint, view) {
    const { start, end, rowSpan, rowSegment, segmentSpan, segmentBlock } = this.model;
    const low = rowSpan[row];
    const stop = rowSpan[row + 1];
    const after = firstAfter(start, low, stop, view.from);
    const first = after > low && end[after - 1] > view.from ? after - 1 : after;
    const last = firstNotBefore(start, first, stop, view.to);
    if (!blocks) {
      this.#spans(line, row, first, last, paint, view);
      return;
    }
    for (let s = rowSegment[row]; s < rowSegment[row + 1]; s++) {
      if (!blocks.has(segmentBlock[s])) continue;
      this.#spans(line, row, Math.max(first, segmentSpan[s]), Math.min(last, segmentSpan[s + 1]), paint, view);
    }
  }

  /**
   * Spans [first, last) of a row, one by one or, where pixels are fewer, by groups.
   * @param {Uint32Array} line
   * @param {number} row
   * @param {number} first
   * @param {number} last
   * @param {Paint} paint
   * @param {{from: number, to: number}} view
   */
  #spans(line, row, first, last, paint, view) {
    const { start, end, site, rowSpan } = this.model;
    const width = line.length;
    const perNs = width / (view.to - view.from);
    const density = (last - first) / width;
    if (density > 2) {
      let at = 0;
      while (at + 1 < this.levels.length && this.levels[at + 1].size <= density) at++;
      const level = this.levels[at];
      const low = rowSpan[row];
      const groupStop = Math.ceil((last - low) / level.size);
      for (let group = Math.floor((first - low) / level.size); group < groupStop; group++) {
        const from = Math.max(low + group * level.size, first);
        const to = Math.min(low + (group + 1) * level.size, last) - 1;
        const x0 = Math.max(Math.floor((start[from] - view.from) * perNs), 0);
        const x1 = Math.min(Math.max(Math.floor((end[to] - view.from) * perNs), x0 + 1), width);
        const color = paint.site[level.site[level.first[row] + group]];
        if (color) for (let x = x0; x < x1; x++) line[x] = color;
      }
      return;
    }
    const colors = paint.site;
    const { passing } = this;
    for (let i = first; i < last; i++) {
      // Only the first and the last can leave the window: a million of these a frame, so each comparison counts.
      let x0 = i === first ? Math.max(Math.round((start[i] - view.from) * perNs), 0) : ((start[i] - view.from) * perNs + 0.5) | 0;
      const x1 = Math.min((Math.min(end[i], view.to) - view.from) * perNs + 0.5, width) | 0;
      const color = colors[site[i]];
      if (color === 0 || (passing && !passing[i])) continue; // a hidden site
      if (x1 - x0 < HATCHED_PIXELS) {
        do line[x0] = color;
        while (++x0 < x1);
        continue;
      }
      line.fill(color, x0, x1);
      if (paint.hatch[site[i]] !== color) this.waits.push(x0, x1, site[i]);
    }
  }

  /**
   * @param {number} first
   * @param {number} last
   * @param {Paint} paint
   */
  #hatch(first, last, paint) {
    const { width } = /** @type {ImageData} */ (this.image);
    for (let w = 0; w < this.waits.length; w += 3) {
      const [x0, x1, site] = [this.waits[w], this.waits[w + 1], this.waits[w + 2]];
      const color = paint.hatch[site];
      for (let y = first; y < last; y++) {
        for (let x = x0 + ((HATCH - ((x0 + y) % HATCH)) % HATCH); x < x1; x += HATCH) this.pixels[y * width + x] = color;
      }
    }
  }
}
