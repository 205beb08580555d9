/**
 * Groups of neighbouring spans of a row, for drawing many in one pixel.
 * In: a Model, and which of its spans pass the filters. Out: of a row, level after level, the site that most of the time
 * of each group of FACTOR^(level + 1) spans is in; the number of sites where none of them passes. A row is looked
 * through when it is first asked for.
 */

/** @typedef {import("./model.js").Model} Model */

export const FACTOR = 4;

export class Pyramid {
  /**
   * @param {Model} model
   * @param {Uint8Array | null} [passing] by span; null for all
   */
  constructor(model, passing = null) {
    this.model = model;
    this.passing = passing;
    this.none = model.facts.sites.length;
    /** @type {(Uint8Array | Uint16Array | undefined)[]} */
    this.rows = [];
    this.weights = new Float64Array(0);
  }

  /**
   * All levels of a row, one after the other: level 0 has an entry for each FACTOR of its spans, the next one for each
   * FACTOR of those, and so on to a single one.
   * @param {number} row
   */
  of(row) {
    return (this.rows[row] ??= this.#build(row));
  }

  /** @param {number} row */
  #build(row) {
    const { none } = this;
    const from = this.model.rowSpan[row];
    let count = this.model.rowSpan[row + 1] - from;
    const weights = this.#weigh(from, count);
    const out = new (none > 255 ? Uint16Array : Uint8Array)(sizeOf(count));
    /** @type {ArrayLike<number>} */
    let source = this.model.site;
    let [first, at] = [from, 0];
    do {
      const groups = Math.ceil(count / FACTOR);
      for (let group = 0; group < groups; group++) {
        const stop = Math.min((group + 1) * FACTOR, count);
        let [best, most] = [none, -1];
        for (let i = group * FACTOR; i < stop; i++) {
          const site = source[first + i];
          let sum = weights[i];
          if (sum < 0) continue;
          for (let j = i + 1; j < stop; j++) if (source[first + j] === site && weights[j] > 0) sum += weights[j];
          if (sum > most) [best, most] = [site, sum];
        }
        out[at + group] = best;
        weights[group] = most; // in the place of what has been read
      }
      [source, first, count, at] = [out, at, groups, at + groups];
    } while (count > 1);
    return out;
  }

  /**
   * Durations of spans, -1 where one does not pass.
   * @param {number} from
   * @param {number} count
   */
  #weigh(from, count) {
    const { start, end } = this.model;
    if (this.weights.length < count) this.weights = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      this.weights[i] = this.passing && !this.passing[from + i] ? -1 : end[from + i] - start[from + i];
    }
    return this.weights;
  }
}

/** @param {number} count */
function sizeOf(count) {
  let size = 0;
  do size += count = Math.ceil(count / FACTOR);
  while (count > 1);
  return size;
}
