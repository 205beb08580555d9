/**
 * Where lanes and rows stand, from top to bottom.
 * In: a Model, filters, the height of a row. Out: `Layout`: places in CSS pixels, hits, the height of all.
 */

import { below } from "./model.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {(value: number) => boolean} Test */
/** @typedef {{launch: number | null, sm: Test | null, block: Test | null, warp: Test | null}} Filters */

export const HEAD = 20;
const GAP = 3;

export class Layout {
  /**
   * @param {Model} model
   * @param {Filters} filters
   * @param {number} rowHeight below 1 several rows share a pixel
   */
  constructor(model, filters, rowHeight) {
    this.model = model;
    this.rowHeight = rowHeight;
    this.bar = rowHeight >= 9 ? 14 : rowHeight >= 3 ? 11 : 5;
    const { lanes, rows } = model;
    const wanted = filters.block && blocksOf(model, filters.block);
    /** Lane, first of its places in `row`, top of each strip; the last top is the height of all. */
    this.lane = /** @type {number[]} */ ([]);
    this.first = /** @type {number[]} */ ([]);
    this.top = /** @type {number[]} */ ([]);
    /** @type {Map<number, number>} strip of each lane */
    this.strip = new Map();
    /** Rows in the order shown. */
    this.row = /** @type {number[]} */ ([]);
    /** Headings: [top, launch]. */
    this.heads = /** @type {[number, number][]} */ ([]);
    let y = 0;
    let launch = -1;
    let sm = NaN;
    for (let r = 0; r < rows.lane.length; ) {
      const lane = rows.lane[r];
      const shown =
        (filters.launch === null || lanes.launch[lane] === filters.launch) &&
        (!filters.sm || filters.sm(lanes.sm[lane])) &&
        (!wanted || wanted.lanes.has(lane));
      const from = this.row.length;
      for (; r < rows.lane.length && rows.lane[r] === lane; r++) {
        if (shown && (!filters.warp || filters.warp(rows.warp[r]))) this.row.push(r);
      }
      if (this.row.length === from) continue;
      if (lanes.launch[lane] !== launch) {
        launch = lanes.launch[lane];
        sm = NaN;
        if (filters.launch === null && model.facts.launches.length > 1) {
          this.heads.push([y, launch]);
          y += HEAD;
        }
      }
      if (lanes.sm[lane] !== sm) {
        sm = lanes.sm[lane];
        y += GAP;
      }
      this.strip.set(lane, this.lane.length);
      this.lane.push(lane);
      this.first.push(from);
      this.top.push(y);
      y += this.bar + Math.max(1, Math.ceil((this.row.length - from) * rowHeight)) + GAP;
    }
    this.first.push(this.row.length);
    this.top.push(y);
    this.blocks = wanted ? wanted.blocks : null;
  }

  /**
   * Whether the filter of blocks lets a span's block through.
   * @param {number} span
   */
  ofBlocks(span) {
    return !this.blocks || this.blocks.has(this.model.segmentBlock[this.model.segmentOf(span)]);
  }

  get height() {
    return this.top[this.top.length - 1];
  }

  /**
   * The strip at a height, or the last above it; -1 above all.
   * @param {number} y
   */
  stripAt(y) {
    return this.lane.length && y >= this.top[0] ? Math.min(below(this.top, y), this.lane.length - 1) : -1;
  }

  /**
   * The row at a height: -1 between rows.
   * @param {number} y
   */
  rowAt(y) {
    const strip = this.stripAt(y);
    if (strip < 0) return -1;
    const place = Math.floor((y - this.top[strip] - this.bar) / this.rowHeight);
    return place >= 0 && place < this.first[strip + 1] - this.first[strip] ? this.row[this.first[strip] + place] : -1;
  }

  /**
   * Top of a row; null where it is not shown.
   * @param {number} row
   */
  topOf(row) {
    const place = below(this.row, row);
    if (this.row[place] !== row) return null;
    const strip = below(this.first, place);
    return this.top[strip] + this.bar + (place - this.first[strip]) * this.rowHeight;
  }
}

/**
 * @param {Model} model
 * @param {Test} test
 */
function blocksOf(model, test) {
  const blocks = new Set();
  const lanes = new Set();
  for (let b = 0; b < model.blocks.block.length; b++) {
    if (!test(model.blocks.block[b])) continue;
    blocks.add(b);
    lanes.add(model.blocks.lane[b]);
  }
  return { blocks, lanes };
}
