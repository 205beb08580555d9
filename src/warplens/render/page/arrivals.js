/**
 * What ended a wait or, elsewhere than it began, a range, as render/page_arrows.py packed it.
 * In: a Model and its columns. Out: `Arrival` of a span on request. Says what Python found; finds nothing itself.
 */

import { below } from "./model.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./codec.js").Numbers} Numbers */
/** @typedef {import("./codec.js").Reader} Reader */
/**
 * @typedef {object} Arrival
 * @property {string} basis
 * @property {number} arrival the span that ended it (of a range: the one that its ender was in); -1 where none is known
 * @property {number} of how many arrivals the round has
 * @property {number} row where it was ended; -1 where that is not known or not on the page
 * @property {number} time
 * @property {{block: number, warp: number} | null} ender of a range
 */

const STEP = 4096;

export class Arrivals {
  /**
   * @param {Model} model
   * @param {(name: string) => any} ask a Reader of a column; null for one that the page does not have
   * @param {Numbers | undefined} enders spans that another warp ended
   */
  constructor(model, ask, enders) {
    this.model = model;
    /** @type {Record<"basis" | "of" | "row" | "place", Reader> | null} */
    this.columns = ask("arrow_basis") && {
      basis: ask("arrow_basis"),
      of: ask("arrow_of"),
      row: ask("arrow_row"),
      place: ask("arrow_place"),
    };
    /** @type {{span: Numbers, row: Reader, block: Reader, warp: Reader} | null} */
    this.enders = enders ? { span: enders, row: ask("ender_row"), block: ask("ender_block"), warp: ask("ender_warp") } : null;
    const bases = Object.entries(model.facts.bases ?? {});
    this.names = bases.sort(([, a], [, b]) => Number(a) - Number(b)).map(([name]) => name);
    /** @type {number[]} per site, whether it waits */
    this.waits = model.facts.sites.map((/** @type {any} */ site) => (site.waits ? 1 : 0));
    /** @type {Uint32Array | null} waits before every STEP-th span */
    this.before = null;
  }

  /** Whether any span of the page has one. */
  get any() {
    return Boolean(this.columns || this.enders);
  }

  /**
   * What ended a span; null for one that neither waits nor was ended by another warp.
   * @param {number} span
   * @returns {Arrival | null}
   */
  of(span) {
    const { model, columns } = this;
    if (!columns || !this.waits[model.site[span]]) return this.#joined(span);
    const wait = this.#waitsBefore(span);
    const basis = this.names[columns.basis(wait)];
    const of = columns.of(wait);
    if (!of) return { basis, arrival: -1, of, row: -1, time: 0, ender: null };
    const from = model.rowOf(span);
    const row = model.laneRow[model.rows.lane[from]] + columns.row(wait);
    const arrival = model.rowSpan[row] + (span - model.rowSpan[from]) + columns.place(wait);
    return { basis, arrival, of, row, time: model.start[arrival], ender: null };
  }

  /**
   * @param {number} span
   * @returns {Arrival | null}
   */
  #joined(span) {
    const { model, enders } = this;
    if (!enders) return null;
    const entry = below(enders.span, span);
    if (enders.span[entry] !== span) return null;
    const row = enders.row(entry) - 1;
    const time = model.end[span];
    const ender = { block: enders.block(entry), warp: enders.warp(entry) };
    return { basis: "RECORDED", arrival: row < 0 ? -1 : model.spanAt(row, time, 0), of: 0, row, time, ender };
  }

  /** @param {number} span */
  #waitsBefore(span) {
    const { model, waits } = this;
    if (!this.before) {
      this.before = new Uint32Array(Math.ceil(model.size / STEP) + 1);
      for (let i = 0, count = 0; i < model.size; i++) {
        if (i % STEP === 0) this.before[i / STEP] = count;
        count += waits[model.site[i]];
      }
    }
    let count = this.before[Math.floor(span / STEP)];
    for (let i = span - (span % STEP); i < span; i++) count += waits[model.site[i]];
    return count;
  }
}
