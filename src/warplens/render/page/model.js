/**
 * The spans of the page in the order of its rows.
 * In: facts and unpacked columns. Out: `Model`: start and end of each span in ns since the page's first instant, its
 * site, and everything else about one span on request. Draws nothing and changes nothing once made.
 */

import { Arrivals } from "./arrivals.js";
import { isConstant, numbersOf, readerOf } from "./codec.js";

/** @typedef {import("./codec.js").Numbers} Numbers */
/** @typedef {import("./codec.js").Column} Column */
/** @typedef {import("./codec.js").Reader} Reader */
/** @typedef {{launch: number, sm: number, base_cycles: string, offset_ns: number, ns_per_cycle: number}} Clock */
/** @typedef {Uint32Array | Float64Array} Times */
/**
 * @typedef {object} Span
 * @property {number} index
 * @property {number} row
 * @property {number} launch
 * @property {number} block
 * @property {number} blockRow
 * @property {number} warp
 * @property {number} level
 * @property {number} sm
 * @property {number} smEnd
 * @property {number} wave
 * @property {number} cluster
 * @property {number} sequence
 * @property {number} site
 * @property {number} depth
 * @property {number} flags
 * @property {number | null} payload
 * @property {number | null} id
 * @property {bigint} startNs since the trace's origin
 * @property {bigint} startCycles clock64 of its SM
 * @property {number} durationNs
 * @property {number} durationCycles
 * @property {number | null} correctedNs its duration without what the marks cost
 * @property {number | null} correctedWithinNs how far that may be off
 */

export class Model {
  /**
   * @param {any} facts
   * @param {Uint8Array[]} streams
   */
  constructor(facts, streams) {
    this.facts = facts;
    /** @type {Record<string, Column>} */
    const columns = facts.columns;
    /** @param {string} name */
    const take = (name) => numbersOf(columns[name], streams);
    /** @param {string} name of a column that the page need not have @returns {Reader | null} */
    const ask = (name) => (columns[name] ? readerOf(columns[name], streams) : null);
    /** @type {Clock[]} */
    this.clocks = facts.clocks;
    this.since = BigInt(facts.since_trace_ns);
    this.lanes = { launch: take("lane_launch"), sm: take("lane_sm"), slot: take("lane_slot") };
    this.rows = { lane: take("row_lane"), warp: take("row_warp"), level: take("row_level") };
    this.blocks = {
      block: take("block_block"),
      lane: take("block_lane"),
      clock: take("block_clock"),
      since: take("block_since"),
      start: take("block_start_ns"),
      time: take("block_time_ns"),
      smBegin: take("block_sm_begin"),
      smEnd: take("block_sm_end"),
      cluster: take("block_cluster"),
      wave: take("block_wave"),
    };
    this.laneFirst = sums(countsOf(this.blocks.lane, this.lanes.launch.length));
    this.laneBlock = inTime(this.blocks.lane, this.blocks.start, this.laneFirst);
    /** First row of each lane; one more at the end. */
    this.laneRow = sums(countsOf(this.rows.lane, this.lanes.launch.length));
    this.segmentBlock = take("segment_block");
    /** First segment of each row, first span of each segment, first span of each row; one more at the end of each. */
    this.rowSegment = sums(take("row_segments"));
    this.segmentSpan = sums(take("segment_spans"));
    this.rowSpan = this.rowSegment.map((segment) => this.segmentSpan[segment]);
    this.size = facts.spans;
    this.site = /** @type {Uint8Array | Uint16Array | Uint32Array} */ (take("site"));
    /** @type {number[]} spans of each site */
    this.counts = facts.site_spans;
    const wide = facts.extent_ns >= 2 ** 32;
    /** @type {Times} */
    this.start = wide ? new Float64Array(this.size) : new Uint32Array(this.size);
    /** @type {Times} */
    this.end = wide ? new Float64Array(this.size) : new Uint32Array(this.size);
    this.gap = take("gap");
    const duration = take("duration");
    this.cycles = /** @type {Numbers} */ (new /** @type {any} */ (duration.constructor)(this.size));
    this.flags = isConstant(columns.flags, 0) ? null : take("flags");
    this.sequence = isConstant(columns.sequence, 0) ? null : ask("sequence");
    this.depth = isConstant(columns.depth, 0) ? null : ask("depth");
    this.payload = ask("payload");
    this.payloadValid = ask("payload_valid");
    this.id = ask("id");
    this.idValid = ask("id_valid");
    this.corrected = ask("corrected");
    this.correctedValid = ask("corrected_valid");
    this.correctedWithin = ask("corrected_uncertainty");
    this.arrivals = new Arrivals(this, ask, columns.ender_span && take("ender_span"));
    this.#times(duration, take("start_ns"), take("duration_ns"));
  }

  /**
   * Cycles, start and end of each span: its clock line tells the times to about 1 ns, the columns what that misses.
   * @param {Numbers} duration in cycles, ordered by site
   * @param {Numbers} startMissed
   * @param {Numbers} endMissed
   */
  #times(duration, startMissed, endMissed) {
    const { start, end, site, gap, cycles, segmentSpan, segmentBlock } = this;
    const next = sums(this.counts);
    const { clock, since } = this.blocks;
    const offsets = Float64Array.from(this.clocks, (line) => line.offset_ns);
    const slopes = Float64Array.from(this.clocks, (line) => line.ns_per_cycle);
    for (let segment = 0; segment < segmentBlock.length; segment++) {
      const block = segmentBlock[segment];
      const [offset, slope] = [offsets[clock[block]], slopes[clock[block]]];
      const stop = segmentSpan[segment + 1];
      let at = since[block];
      let lasting = false;
      for (let i = segmentSpan[segment]; i < stop; i++) {
        const lasts = duration[next[site[i]]++];
        at += gap[i];
        const begin = Math.floor(offset + at * slope + 0.5) + startMissed[i];
        if (lasting && gap[i] === 0) end[i - 1] = begin + endMissed[i - 1];
        cycles[i] = lasts;
        at += lasts;
        lasting = lasts !== 0;
        start[i] = begin;
        end[i] = (lasting ? Math.floor(offset + at * slope + 0.5) : begin) + endMissed[i];
      }
    }
  }

  /**
   * Places in `blocks` of the blocks of a lane, in the order of time.
   * @param {number} lane
   */
  blocksOfLane(lane) {
    return this.laneBlock.subarray(this.laneFirst[lane], this.laneFirst[lane + 1]);
  }

  /**
   * The block of a lane that is resident at a time; -1 for none.
   * @param {number} lane
   * @param {number} time
   */
  blockAt(lane, time) {
    for (const block of this.blocksOfLane(lane)) {
      const start = this.blocks.start[block];
      if (start <= time && time <= start + this.blocks.time[block]) return block;
    }
    return -1;
  }

  /** @param {number} span */
  rowOf(span) {
    return below(this.rowSpan, span);
  }

  /** @param {number} span */
  segmentOf(span) {
    return below(this.segmentSpan, span);
  }

  /**
   * Everything that the trace says of one span.
   * @param {number} index
   * @returns {Span}
   */
  span(index) {
    const row = this.rowOf(index);
    const segment = this.segmentOf(index);
    const blockRow = this.segmentBlock[segment];
    const first = this.segmentSpan[segment];
    const clock = this.clocks[this.blocks.clock[blockRow]];
    let at = 0;
    let sequence = 0;
    for (let i = first; i <= index; i++) {
      at += this.gap[i] + (i < index ? this.cycles[i] : 0);
      const step = this.sequence ? this.sequence(i) : 0;
      sequence = i === first ? step : sequence + 1 + step;
    }
    return {
      index,
      row,
      launch: this.lanes.launch[this.rows.lane[row]],
      block: this.blocks.block[blockRow],
      blockRow,
      warp: this.rows.warp[row],
      level: this.rows.level[row],
      sm: this.blocks.smBegin[blockRow],
      smEnd: this.blocks.smEnd[blockRow],
      wave: this.blocks.wave[blockRow],
      cluster: this.blocks.cluster[blockRow],
      sequence,
      site: this.site[index],
      depth: this.depth ? this.depth(index) : 0,
      flags: this.flags ? this.flags[index] : 0,
      payload: this.payload && this.payloadValid?.(index) ? this.payload(index) : null,
      id: this.id && this.idValid?.(index) ? this.id(index) : null,
      startNs: this.since + BigInt(this.start[index]),
      startCycles: BigInt(clock.base_cycles) + BigInt(this.blocks.since[blockRow]) + BigInt(at),
      durationNs: this.end[index] - this.start[index],
      durationCycles: this.cycles[index],
      correctedNs: this.corrected && this.correctedValid?.(index) ? this.end[index] - this.start[index] + this.corrected(index) : null,
      correctedWithinNs: this.correctedWithin && this.correctedValid?.(index) ? this.correctedWithin(index) : null,
    };
  }

  /**
   * The first span of a segment that is of a record or a later one; the segment's end where there is none.
   * @param {number} segment
   * @param {number} wanted
   */
  firstOfSequence(segment, wanted) {
    const first = this.segmentSpan[segment];
    const stop = this.segmentSpan[segment + 1];
    let sequence = -1;
    for (let i = first; i < stop; i++) {
      const step = this.sequence ? this.sequence(i) : 0;
      sequence = i === first ? step : sequence + 1 + step;
      if (sequence >= wanted) return i;
    }
    return stop;
  }

  /**
   * Spans of the same warp and block, on all levels, up to `most` before and after in each, in the order of time.
   * @param {Span} span
   * @param {number} most
   */
  spansOfWarp(span, most) {
    const { rows, rowSegment, segmentBlock, segmentSpan, start } = this;
    const lane = rows.lane[span.row];
    const out = [];
    for (let row = span.row - span.level; row < rows.lane.length; row++) {
      if (row < 0 || rows.warp[row] !== span.warp || rows.lane[row] !== lane) {
        if (row >= span.row) break;
        continue; // a warp need not have spans on every level
      }
      for (let s = rowSegment[row]; s < rowSegment[row + 1]; s++) {
        if (segmentBlock[s] !== span.blockRow) continue;
        const near = firstNotBefore(start, segmentSpan[s], segmentSpan[s + 1], start[span.index]);
        const stop = Math.min(near + most + 1, segmentSpan[s + 1]);
        for (let i = Math.max(near - most, segmentSpan[s]); i < stop; i++) out.push(i);
      }
    }
    return out.sort((a, b) => start[a] - start[b] || a - b);
  }

  /**
   * The span of a row that is open at a time, else the nearest instant within `slack` ns; -1 for none.
   * @param {number} row
   * @param {number} time
   * @param {number} slack
   */
  spanAt(row, time, slack) {
    const low = this.rowSpan[row];
    const high = this.rowSpan[row + 1];
    const after = firstAfter(this.start, low, high, time);
    if (after > low && this.end[after - 1] >= time) return after - 1;
    let best = -1;
    let distance = slack;
    for (const i of [after - 1, after]) {
      if (i < low || i >= high) continue;
      const off = i < after ? time - this.end[i] : this.start[i] - time;
      if (off <= distance) [best, distance] = [i, off];
    }
    return best;
  }

  /**
   * How many spans of a row lie in [from, to) at least in part.
   * @param {number} row
   * @param {number} from
   * @param {number} to
   */
  countBetween(row, from, to) {
    const [low, high] = [this.rowSpan[row], this.rowSpan[row + 1]];
    const first = firstNotBefore(this.start, low, high, from);
    const open = first > low && this.end[first - 1] > from ? 1 : 0;
    return firstNotBefore(this.start, first, high, to) - first + open;
  }
}

/**
 * Running sums: out[0] is 0, out[i + 1] all up to counts[i].
 * @param {ArrayLike<number>} counts
 */
export function sums(counts) {
  const out = new Uint32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) out[i + 1] = out[i] + counts[i];
  return out;
}

/**
 * How often each of 0 .. size - 1 stands in `values`.
 * @param {ArrayLike<number>} values
 * @param {number} size
 */
export function countsOf(values, size) {
  const out = new Uint32Array(size);
  for (let i = 0; i < values.length; i++) out[values[i]]++;
  return out;
}

/**
 * Blocks by lane and begin; those that begin together stay as they stand.
 * @param {Numbers} lane
 * @param {Numbers} start
 * @param {Uint32Array} first of each lane
 */
function inTime(lane, start, first) {
  const out = new Uint32Array(lane.length);
  const next = first.slice();
  for (let block = 0; block < lane.length; block++) out[next[lane[block]]++] = block;
  for (let l = 0; l + 1 < first.length; l++) out.subarray(first[l], first[l + 1]).sort((a, b) => start[a] - start[b] || a - b);
  return out;
}

/**
 * The last i with edges[i] <= value, of edges that grow; empty steps are passed over.
 * @param {ArrayLike<number>} edges
 * @param {number} value
 */
export function below(edges, value) {
  let low = 0;
  let high = edges.length;
  while (high - low > 1) {
    const middle = (low + high) >>> 1;
    if (edges[middle] <= value) low = middle;
    else high = middle;
  }
  return low;
}

/**
 * The first i of [low, high) with values[i] > value; high where there is none.
 * @param {ArrayLike<number>} values
 * @param {number} low
 * @param {number} high
 * @param {number} value
 */
export function firstAfter(values, low, high, value) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * The first i of [low, high) with values[i] >= value; high where there is none.
 * @param {ArrayLike<number>} values
 * @param {number} low
 * @param {number} high
 * @param {number} value
 */
export function firstNotBefore(values, low, high, value) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] >= value) high = middle;
    else low = middle + 1;
  }
  return low;
}
