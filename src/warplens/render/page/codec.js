/**
 * Columns of integers, as render/page_pack.py packed them.
 * In: base64 texts and the facts of each column. Out: typed arrays as narrow as the numbers, or single numbers on
 * request. Signed numbers of one byte stand as they are, wider ones folded (0, -1, 1, -2, ...). Knows nothing of spans.
 */

/** @typedef {{n: number, signed: boolean, planes: (number | number[])[]}} Column */
/** @typedef {Uint8Array | Int8Array | Uint16Array | Int16Array | Int32Array | Uint32Array | Float64Array} Numbers */
/** @typedef {(index: number) => number} Reader */

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
 * What a zlib stream holds. Written to the stream at once: by way of a Blob the bytes would go to another process.
 * @param {Uint8Array} bytes
 * @returns {Promise<Uint8Array>}
 */
export async function inflate(bytes) {
  const { readable, writable } = new DecompressionStream("deflate");
  const writer = writable.getWriter();
  const written = Promise.all([writer.write(/** @type {any} */ (bytes)), writer.close()]);
  const [read] = await Promise.all([new Response(readable).arrayBuffer(), written]);
  return new Uint8Array(read);
}

/**
 * The numbers of one column. Beyond 2^53 they are rounded.
 * @param {Column} column
 * @param {Uint8Array[]} streams all streams of the page, unpacked
 * @returns {Numbers}
 */
export function numbersOf({ n, signed, planes }, streams) {
  const bytes = planes.map((plane) => whole(plane, streams, n));
  if (bytes.length === 1) return signed ? new Int8Array(bytes[0].buffer, bytes[0].byteOffset, n) : bytes[0];
  if (bytes.length === 2) return signed ? unfolded16(joined16(bytes[0], bytes[1])) : joined16(bytes[0], bytes[1]);
  if (bytes.length <= 4) return signed ? unfolded32(joined32(bytes)) : joined32(bytes);
  return joined64(bytes, signed);
}

// One function a type: a loop that meets arrays of several types takes many times as long.

/**
 * @param {Uint8Array} low
 * @param {Uint8Array} high
 */
function joined16(low, high) {
  const out = new Uint16Array(low.length);
  for (let i = 0; i < out.length; i++) out[i] = low[i] | (high[i] << 8);
  return out;
}

/** @param {Uint8Array[]} planes */
function joined32(planes) {
  const out = new Uint32Array(planes[0]);
  for (let k = 1; k < planes.length; k++) {
    const plane = planes[k];
    for (let i = 0; i < out.length; i++) out[i] |= plane[i] << (8 * k);
  }
  return out;
}

/**
 * @param {Uint8Array[]} planes
 * @param {boolean} signed
 */
function joined64(planes, signed) {
  const out = new Float64Array(planes[0].length);
  planes.forEach((plane, k) => {
    for (let i = 0; i < out.length; i++) out[i] += plane[i] * 2 ** (8 * k);
  });
  if (signed) for (let i = 0; i < out.length; i++) out[i] = out[i] % 2 ? -(out[i] + 1) / 2 : out[i] / 2;
  return out;
}

/** @param {Uint16Array} folded */
function unfolded16(folded) {
  const out = new Int16Array(folded.buffer);
  for (let i = 0; i < out.length; i++) out[i] = (folded[i] >>> 1) ^ -(folded[i] & 1);
  return out;
}

/** @param {Uint32Array} folded */
function unfolded32(folded) {
  const out = new Int32Array(folded.buffer);
  for (let i = 0; i < out.length; i++) out[i] = (folded[i] >>> 1) ^ -(folded[i] & 1);
  return out;
}

/**
 * The bytes of a plane.
 * @param {number | number[]} plane
 * @param {Uint8Array[]} streams
 * @param {number} n
 */
function whole(plane, streams, n) {
  if (typeof plane === "number") return new Uint8Array(n).fill(plane);
  if (plane.length === 1) return streams[plane[0]];
  const out = new Uint8Array(n);
  let at = 0;
  for (const piece of plane) {
    out.set(streams[piece], at);
    at += streams[piece].length;
  }
  return out;
}

/**
 * A column of which few numbers are asked for: nothing is unpacked beforehand.
 * @param {Column} column
 * @param {Uint8Array[]} streams
 * @returns {Reader}
 */
export function readerOf({ signed, planes }, streams) {
  const bytes = planes.map((plane) => (typeof plane === "number" ? () => plane : byteOf(plane.map((piece) => streams[piece]))));
  return (index) => {
    let value = 0;
    for (let k = 0; k < bytes.length; k++) value += bytes[k](index) * 2 ** (8 * k);
    if (signed && bytes.length === 1) return (value << 24) >> 24;
    return !signed ? value : value % 2 ? -(value + 1) / 2 : value / 2;
  };
}

/**
 * @param {Uint8Array[]} pieces all but the last of one length
 * @returns {Reader}
 */
function byteOf(pieces) {
  const { length } = pieces[0];
  return (index) => pieces[Math.floor(index / length)][index % length];
}

/**
 * Whether all numbers of a column are this one.
 * @param {Column | undefined} column
 * @param {number} value below 256
 */
export function isConstant(column, value) {
  return !column || column.planes.every((plane, k) => plane === (k ? 0 : value));
}
