/**
 * Columns of integers, as render/page_pack.py packed them.
 * In: base64 texts and the facts of each column. Out: typed arrays. Knows nothing of spans.
 */

/** @typedef {{n: number, signed: boolean, planes: (number | number[])[]}} Column */
/** @typedef {Uint8Array | Int32Array | Uint32Array | Float64Array} Numbers */

/**
 * The bytes of a base64 text.
 * @param {string} text
 * @returns {Uint8Array}
 */
export function bytesOf(text) {
  const quick = /** @type {any} */ (Uint8Array).fromBase64;
  if (quick) return quick.call(Uint8Array, text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/**
 * What a zlib stream holds.
 * @param {Uint8Array} bytes
 * @returns {Promise<Uint8Array>}
 */
export async function inflate(bytes) {
  const stream = new Blob([/** @type {any} */ (bytes)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * The numbers of one column: 8, 32 or 64 bits wide, as its planes need. Beyond 2^53 they are rounded.
 * @param {Column} column
 * @param {Uint8Array[]} streams all streams of the page, unpacked
 * @returns {Numbers}
 */
export function numbersOf(column, streams) {
  const { n, signed, planes } = column;
  const [only] = planes;
  if (planes.length === 1 && !signed && typeof only !== "number") return whole(only, streams, n);
  const out = planes.length > 4 ? new Float64Array(n) : signed ? new Int32Array(n) : new Uint32Array(n);
  const wide = planes.length > 4;
  for (let k = 0; k < planes.length; k++) {
    const plane = planes[k];
    const scale = 2 ** (8 * k);
    if (typeof plane === "number") {
      if (plane) for (let i = 0; i < n; i++) out[i] += plane * scale;
      continue;
    }
    const bytes = whole(plane, streams, n);
    if (k === 0) out.set(bytes);
    else if (wide) for (let i = 0; i < n; i++) out[i] += bytes[i] * scale;
    else for (let i = 0; i < n; i++) out[i] |= bytes[i] << (8 * k);
  }
  if (signed && wide) for (let i = 0; i < n; i++) out[i] = out[i] % 2 ? -(out[i] + 1) / 2 : out[i] / 2;
  else if (signed) for (let i = 0; i < n; i++) out[i] = (out[i] >>> 1) ^ -(out[i] & 1);
  return out;
}

/**
 * Whether all numbers of a column are this one.
 * @param {Column | undefined} column
 * @param {number} value below 256
 */
export function isConstant(column, value) {
  return !column || column.planes.every((plane, k) => plane === (k ? 0 : value));
}

/**
 * @param {number[]} pieces
 * @param {Uint8Array[]} streams
 * @param {number} n
 */
function whole(pieces, streams, n) {
  if (pieces.length === 1) return streams[pieces[0]];
  const out = new Uint8Array(n);
  let at = 0;
  for (const piece of pieces) {
    out.set(streams[piece], at);
    at += streams[piece].length;
  }
  return out;
}
