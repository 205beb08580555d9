/**
 * Spans as pixels.
 * In: a Model, a layout and a window of time. Out: an ImageData: one line of pixels a row, copied to the row's height.
 *
 * A window that moves, in time or over the rows, moves by whole pixels, and what it showed before is moved with it: drawn
 * anew is only what comes into it. So that this makes no other picture, a row is drawn in tiles of TILE columns that
 * stand still in time, and each pixel depends on its tile alone. Where a tile has more than DENSE spans a pixel, groups
 * of them are drawn in the colour of the site that most of their time is in; else each span has a pixel at least, and
 * of those that share one the last is seen.
 */

import { FACTOR, Pyramid } from "./pyramid.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./rows.js").Layout} Layout */
/**
 * @typedef {object} Paint
 * @property {Uint32Array} site colour of each site, as the pixels of an ImageData; 0 for a hidden one
 * @property {Uint32Array} hatch colour of the stripes of each site; the same as `site` where it has none
 * @property {Uint32Array} bars of blocks, by wave
 * @property {number} lane
 * @property {number} page
 */
/**
 * @typedef {object} Picture what is on the pixels, and where: column 0 of the window is column `left` of the picture
 * @property {Layout} layout
 * @property {Paint} paint
 * @property {Pyramid} pyramid
 * @property {number} scale device pixels a CSS pixel
 * @property {number} span ns over the width
 * @property {number} perNs columns a ns
 * @property {number} origin ns where column 0 of the picture begins
 * @property {number} left
 * @property {number} top line of the layout that is the window's first
 */

export const TILE = 64;
const FAR = 3 << 19; // tiles and stripes begin there
const LEAST_MOVE = 1e-3; // of a pixel; less comes of rounding
const DENSE = 2;
const HATCH = 6;
const HATCHED_PIXELS = 5;
const HATCHED_LINES = 3;
const SHORT = 24;
const OVERLAP_NS = 2; // ROUNDING_NS of render/page_levels.py: by so much a span of a row may last into the next one

export class Strips {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    this.pyramid = new Pyramid(model);
    /** @type {Uint8Array | null} by span; null where all are drawn */
    this.passing = null;
    /** @type {ImageData | null} */
    this.image = null;
    this.pixels = new Uint32Array(0);
    this.width = this.height = 0;
    this.picture = /** @type {Picture} */ (/** @type {unknown} */ (null));
    /** Waits of the line just painted that are wide enough to hatch: begin, end, site. */
    this.waits = /** @type {number[]} */ ([]);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Layout} layout
   * @param {Paint} paint
   * @param {{from: number, to: number, y: number}} view
   * @param {number} scale device pixels a CSS pixel
   * @returns {[number, number, number]} from, to and y, moved to whole pixels of the picture
   */
  draw(context, layout, paint, view, scale) {
    const { width, height } = context.canvas;
    const top = Math.round(view.y * scale);
    const resized = !this.image || this.width !== width || this.height !== height;
    if (resized) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      [this.width, this.height] = [width, height];
    }
    const { picture, pyramid } = this;
    const span = view.to - view.from;
    const same =
      !resized && picture.layout === layout && picture.paint === paint && picture.pyramid === pyramid &&
      picture.scale === scale && Math.abs(picture.span - span) < 1e-9 * span;
    const left = same ? Math.round((view.from - picture.origin) * picture.perNs) : -1;
    let { from, to } = view;
    if (left > TILE && left < 2 * FAR) {
      this.#move(left, top);
      const drawn = picture.origin + left / picture.perNs;
      if (Math.abs(drawn - from) * picture.perNs > LEAST_MOVE) [from, to] = [drawn, drawn + span];
    } else {
      const perNs = width / span;
      this.picture = { layout, paint, pyramid, scale, span, perNs, origin: from - FAR / perNs, left: FAR, top };
      this.renew();
    }
    context.putImageData(/** @type {ImageData} */ (this.image), 0, 0);
    return [from, to, top / scale];
  }

  /** Draws all of the picture. */
  renew() {
    this.#paint(0, this.width, 0, this.height);
  }

  /**
   * Moves the picture and draws what comes into the window.
   * @param {number} left
   * @param {number} top
   */
  #move(left, top) {
    const { picture, pixels, width, height } = this;
    const [right, down] = [left - picture.left, top - picture.top];
    [picture.left, picture.top] = [left, top];
    if (!right && !down) return;
    if (Math.abs(right) >= width || Math.abs(down) >= height) return void this.renew();
    const by = down * width + right;
    if (by > 0) pixels.copyWithin(0, by);
    else pixels.copyWithin(-by, 0);
    if (down) this.#paint(0, width, down > 0 ? height - down : 0, down > 0 ? height : -down);
    const [first, last] = down > 0 ? [0, height - down] : [-down, height];
    if (right) this.#paint(right > 0 ? width - right : 0, right > 0 ? width : -right, first, last);
  }

  /**
   * Draws the columns [x0, x1) of the lines [y0, y1) of the window.
   * @param {number} x0
   * @param {number} x1
   * @param {number} y0
   * @param {number} y1
   */
  #paint(x0, x1, y0, y1) {
    const { layout, paint, scale, top } = this.picture;
    for (let y = y0; y < y1; y++) this.#fill(y, paint.page, x0, x1);
    const strips = layout.lane.length;
    for (let strip = Math.max(layout.stripAt((top + y0) / scale) - 1, 0); strip < strips; strip++) {
      const begin = Math.round(layout.top[strip] * scale) - top;
      if (begin >= y1) break;
      const end = begin + Math.max(2, Math.round((layout.bar - 1) * scale));
      this.#bar(strip, x0, x1, Math.max(begin, y0), Math.min(end, y1));
      this.#rows(strip, x0, x1, y0, y1);
    }
  }

  /**
   * @param {number} strip
   * @param {number} x0
   * @param {number} x1
   * @param {number} y0
   * @param {number} y1
   */
  #rows(strip, x0, x1, y0, y1) {
    const { layout, paint, scale, top } = this.picture;
    const { rowHeight } = layout;
    const begin = layout.top[strip] + layout.bar;
    const rows = layout.first[strip + 1] - layout.first[strip];
    const gap = rowHeight * scale >= 5 ? Math.round(scale) : 0;
    let done = -Infinity;
    for (let k = 0; k < rows; k++) {
      const low = Math.round((begin + k * rowHeight) * scale) - top;
      const high = Math.max(Math.round((begin + (k + 1) * rowHeight) * scale) - top - gap, low + 1);
      if (low === done || high <= y0) continue; // several rows share this pixel: the first is shown
      if (low >= y1) break;
      done = low;
      const [first, last] = [Math.max(low, y0), Math.min(high, y1)];
      this.#fill(first, paint.lane, x0, x1);
      this.waits.length = 0;
      this.#line(first, layout.row[layout.first[strip] + k], x0, x1);
      this.#copy(first, last, x0, x1);
      if (high - low >= HATCHED_LINES) this.#hatch(first, last);
    }
  }

  /**
   * Residency: a bar a block, its grey by wave.
   * @param {number} strip
   * @param {number} x0
   * @param {number} x1
   * @param {number} first
   * @param {number} last
   */
  #bar(strip, x0, x1, first, last) {
    if (last <= first) return;
    const { layout, paint, origin, perNs, left } = this.picture;
    const { start, time, wave } = this.model.blocks;
    for (const block of this.model.blocksOfLane(layout.lane[strip])) {
      const begin = Math.floor((start[block] - origin) * perNs + 0.5) - left;
      const end = Math.max(Math.floor((start[block] + time[block] - origin) * perNs + 0.5) - left - 1, begin + 1);
      if (begin >= x1 || end <= x0) continue;
      const color = layout.blocks && !layout.blocks.has(block) ? paint.lane : paint.bars[wave[block] % paint.bars.length];
      this.#fill(first, color, Math.max(begin, x0), Math.min(end, x1));
    }
    this.#copy(first, last, x0, x1);
  }

  /**
   * A row's spans in the columns [x0, x1) of a line: at once where they are few, else tile by tile.
   * @param {number} y
   * @param {number} row
   * @param {number} x0
   * @param {number} x1
   */
  #line(y, row, x0, x1) {
    const { left } = this.picture;
    const low = this.model.rowSpan[row];
    const stop = this.model.rowSpan[row + 1];
    const line = y * this.width - left;
    const [from, to] = [left + x0, left + x1];
    let tile = from - (from % TILE);
    let next = this.#firstAt(low, stop, tile);
    const last = this.#firstAt(next, stop, to + TILE - 1 - ((to + TILE - 1) % TILE));
    let [first, column] = [this.#reaching(next, low, tile), from]; // what is still to be drawn
    for (; tile < to && last - next > DENSE * TILE; tile += TILE) {
      const before = next;
      next = this.#firstAt(before, last, tile + TILE);
      if (next - before <= DENSE * TILE) continue;
      const end = Math.min(tile + TILE, to);
      this.#blocks(line, row, first, before, column, tile, 0);
      this.#blocks(line, row, this.#reaching(before, low, tile), next, Math.max(tile, from), end, (next - before) / TILE);
      [first, column] = [this.#reaching(next, low, tile + TILE), end];
    }
    this.#blocks(line, row, first, last, column, to, 0);
  }

  /**
   * The first span before `next` that can last to a column.
   * @param {number} next
   * @param {number} low
   * @param {number} column
   */
  #reaching(next, low, column) {
    const { start } = this.model;
    const { origin, perNs } = this.picture;
    if (next > low) next--;
    while (next > low && (start[next] + OVERLAP_NS - origin) * perNs + 0.5 >= column) next--;
    return next;
  }

  /**
   * The first of the spans [low, high) that begins at a column of the picture or behind it.
   * @param {number} low
   * @param {number} high
   * @param {number} column
   */
  #firstAt(low, high, column) {
    const { start } = this.model;
    const { origin, perNs } = this.picture;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((start[middle] - origin) * perNs + 0.5 >= column) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /**
   * Of spans [first, last) of a row those of the blocks that are shown, in the columns [from, to) of the picture.
   * @param {number} line where column 0 of the picture would be
   * @param {number} row
   * @param {number} first
   * @param {number} last
   * @param {number} from
   * @param {number} to
   * @param {number} density spans a column
   */
  #blocks(line, row, first, last, from, to, density) {
    if (from >= to) return;
    const { blocks } = this.picture.layout;
    const { segmentSpan, segmentBlock } = this.model;
    if (!blocks) return void this.#spans(line, row, first, last, from, to, density);
    for (let s = this.model.segmentOf(first); segmentSpan[s] < last; s++) {
      if (!blocks.has(segmentBlock[s])) continue;
      this.#spans(line, row, Math.max(first, segmentSpan[s]), Math.min(last, segmentSpan[s + 1]), from, to, density);
    }
  }

  /**
   * @param {number} line
   * @param {number} row
   * @param {number} first
   * @param {number} last
   * @param {number} from
   * @param {number} to
   * @param {number} density
   */
  #spans(line, row, first, last, from, to, density) {
    if (density > DENSE) return void this.#groups(line, row, first, last, from, to, density);
    const { model, pixels, passing, waits } = this;
    const { start, end, site } = model;
    const { origin, perNs, paint } = this.picture;
    const { site: colors, hatch } = paint;
    const shown = this.#firstAt(first, last, to);
    let i = first;
    for (; i < shown && (start[i] - origin) * perNs + 0.5 < from; i++) this.#clipped(line, i, from, to);
    let stop = shown;
    while (stop > i && (end[stop - 1] - origin) * perNs + 0.5 >= to) stop--;
    for (; i < stop; i++) {
      // Up to a million of these a frame: each comparison counts. Columns are not negative, so that |0 rounds down.
      const begin = (start[i] - origin) * perNs + 0.5;
      const ends = (end[i] - origin) * perNs + 0.5;
      const color = colors[site[i]];
      if (color === 0 || (passing !== null && passing[i] === 0)) continue; // a hidden site
      const x0 = begin | 0;
      const x1 = ends | 0;
      pixels[line + x0] = color;
      if (x1 - x0 > SHORT) pixels.fill(color, line + x0 + 1, line + x1);
      else for (let x = x0 + 1; x < x1; x++) pixels[line + x] = color;
      if (ends - begin >= HATCHED_PIXELS && hatch[site[i]] !== color) waits.push(x0, x1, site[i]);
    }
    for (; i < shown; i++) this.#clipped(line, i, from, to);
  }

  /**
   * A span that need not lie within the columns [from, to).
   * @param {number} line
   * @param {number} span
   * @param {number} from
   * @param {number} to
   */
  #clipped(line, span, from, to) {
    const { model, pixels, passing, waits } = this;
    const { origin, perNs, paint } = this.picture;
    const site = model.site[span];
    const color = paint.site[site];
    if (color === 0 || (passing !== null && passing[span] === 0)) return;
    const begin = (model.start[span] - origin) * perNs + 0.5;
    const ends = (model.end[span] - origin) * perNs + 0.5;
    const x0 = Math.max(Math.floor(begin), from);
    const x1 = Math.min(Math.max(Math.floor(ends), Math.floor(begin) + 1), to);
    for (let x = x0; x < x1; x++) pixels[line + x] = color;
    if (ends - begin >= HATCHED_PIXELS && paint.hatch[site] !== color && x0 < x1) waits.push(x0, x1, site);
  }

  /**
   * The same by groups of spans.
   * @param {number} line
   * @param {number} row
   * @param {number} first
   * @param {number} last
   * @param {number} from
   * @param {number} to
   * @param {number} density
   */
  #groups(line, row, first, last, from, to, density) {
    const { start, end, rowSpan } = this.model;
    const { origin, perNs, paint } = this.picture;
    const low = rowSpan[row];
    const sites = this.pyramid.of(row);
    let [size, at] = [FACTOR, 0];
    for (let groups = Math.ceil((rowSpan[row + 1] - low) / FACTOR); size * FACTOR <= density && groups > 1; size *= FACTOR) {
      at += groups;
      groups = Math.ceil(groups / FACTOR);
    }
    for (let group = Math.floor((first - low) / size); low + group * size < last; group++) {
      const color = paint.site[sites[at + group]]; // none where none of its spans passes
      if (!color) continue;
      const begin = Math.floor((start[Math.max(low + group * size, first)] - origin) * perNs + 0.5);
      const ends = Math.floor((end[Math.min(low + (group + 1) * size, last) - 1] - origin) * perNs + 0.5);
      const stop = Math.min(Math.max(ends, begin + 1), to);
      for (let x = Math.max(begin, from); x < stop; x++) this.pixels[line + x] = color;
    }
  }

  /**
   * Stripes over the waits of the line just painted; they stand still in the picture.
   * @param {number} first
   * @param {number} last
   */
  #hatch(first, last) {
    const { waits, pixels, width, picture } = this;
    for (let w = 0; w < waits.length; w += 3) {
      const color = picture.paint.hatch[waits[w + 2]];
      for (let y = first; y < last; y++) {
        const line = y * width - picture.left;
        for (let x = waits[w] + HATCH - 1 - ((waits[w] + y + picture.top + HATCH - 1) % HATCH); x < waits[w + 1]; x += HATCH) {
          pixels[line + x] = color;
        }
      }
    }
  }

  /**
   * @param {number} y
   * @param {number} color
   * @param {number} x0
   * @param {number} x1
   */
  #fill(y, color, x0, x1) {
    this.pixels.fill(color, y * this.width + x0, y * this.width + x1);
  }

  /**
   * The first line to those behind it.
   * @param {number} first
   * @param {number} last
   * @param {number} x0
   * @param {number} x1
   */
  #copy(first, last, x0, x1) {
    const { width, pixels } = this;
    for (let y = first + 1; y < last; y++) pixels.copyWithin(y * width + x0, first * width + x0, first * width + x1);
  }
}
