/** Numbers as people read them. In: numbers. Out: texts, and the places of a ruler's ticks. */

const UNITS = /** @type {const} */ ([
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "us"],
  [1, "ns"],
]);

/**
 * `812 ns`, `5.21 us`: four digits at most, for labels.
 * @param {number} ns
 */
export function shortNs(ns) {
  const [scale, unit] = UNITS.find(([scale]) => Math.abs(ns) >= scale) ?? UNITS[3];
  const value = ns / scale;
  return `${scale === 1 ? Math.round(value) : value.toPrecision(Math.abs(value) >= 1000 ? 4 : 3)} ${unit}`;
}

/**
 * With a comma for each thousand, and one digit behind the point where it is not 0. `toLocaleString` says the same, but
 * takes 30 ms to load when the page opens.
 * @param {number | bigint | null | undefined} value
 */
export function grouped(value) {
  if (value === null || value === undefined) return "-";
  return withCommas(typeof value === "bigint" ? String(value) : value.toFixed(1).replace(/\.0$/, ""));
}

/** @param {string} text of a number, without exponent */
function withCommas(text) {
  const point = text.indexOf(".");
  const whole = point < 0 ? text : text.slice(0, point);
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + text.slice(whole.length);
}

/**
 * `1 span`, `2 spans`.
 * @param {number} count
 * @param {string} noun
 */
export function counted(count, noun) {
  return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * The step between ticks: 1, 2 or 5 times a power of ten, `least` or more.
 * @param {number} least
 */
export function tickStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return power * ([1, 2, 5].find((m) => power * m >= least) ?? 10);
}

/**
 * A tick's label: as many digits as its step needs.
 * @param {number} value
 * @param {number} step
 * @param {boolean} time in ns; else a bare count
 */
export function tickText(value, step, time) {
  if (!time) return grouped(Math.round(value) + 0); // no "-0"
  const largest = Math.max(Math.abs(value), step);
  const [scale, unit] = UNITS.find(([scale]) => largest >= scale * 10) ?? UNITS[3];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
  return `${withCommas((value / scale + 0).toFixed(digits))} ${unit}`;
}

/**
 * `0-3,8` or `0xff` as a test of numbers; null for an empty text, undefined for one that is none.
 * @param {string} text
 * @returns {((value: number) => boolean) | null | undefined}
 */
export function rangesOf(text) {
  const parts = text.split(",").map((part) => part.trim());
  if (parts.every((part) => !part)) return null;
  /** @type {[number, number][]} */
  const ranges = [];
  for (const part of parts) {
    const found = /^(\d{1,10}|0x[0-9a-f]{1,8})(?:\s*-\s*(\d{1,10}|0x[0-9a-f]{1,8}))?$/i.exec(part);
    if (!found) return undefined;
    ranges.push([Number(found[1]), Number(found[2] ?? found[1])]);
  }
  return (value) => ranges.some(([low, high]) => low <= value && value <= high);
}
