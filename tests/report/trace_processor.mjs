// Runs Perfetto's trace processor (compiled to WebAssembly) over a trace:
//   node trace_processor.mjs FOLDER TRACE < QUERIES.json > ROWS.json
// FOLDER holds trace_processor.wasm, engine_bundle.node.js and engine.mjs; QUERIES is a list of SQL texts, ROWS a
// list of lists of {column: value}.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import vm from 'node:vm';

const [folder, trace] = process.argv.slice(2);
const queries = JSON.parse(readFileSync(0, 'utf8'));

// The bundle is made for a browser's worker: it wants a worker's scope, 32-bit memory without a probe, the
// program's bytes instead of a request, and its bridge within reach.
function replaced(text, from, to) {
  if (!text.includes(from)) throw new Error(`the bundle in ${folder} is of another version: no ${from}`);
  return text.replace(from, to);
}
const place = { value: { href: `${pathToFileURL(folder).href}/` }, configurable: true };
Object.defineProperty(globalThis, 'self', { value: globalThis, configurable: true });
Object.defineProperty(globalThis, 'location', place);
globalThis.WorkerGlobalScope = function WorkerGlobalScope() {};
globalThis.programBytes = new Uint8Array(readFileSync(join(folder, 'trace_processor.wasm')));
let bundle = readFileSync(join(folder, 'engine_bundle.node.js'), 'utf8');
bundle = replaced(bundle, 'this.useMemory64 = hasMemory64Support();', 'this.useMemory64 = false;');
bundle = replaced(bundle, 'locateFile: (s) => s,', 'locateFile: (s) => s, wasmBinary: programBytes,');
const bridge = 'new wasm_bridge_1.WasmBridge();';
bundle = replaced(bundle, bridge, `${bridge} globalThis.processorBridge = wasmBridge;`);
vm.runInThisContext(bundle);

const { EngineBase } = await import(pathToFileURL(join(folder, 'engine.mjs')).href);
class Engine extends EngineBase {
  mode = 'WASM';
  id = 'test';
  constructor(port) {
    super();
    this.port = port;
    port.onmessage = (message) => {
      if (message.data instanceof Uint8Array) this.onRpcResponseBytes(message.data);
    };
  }
  rpcSendRequestBytes(bytes) {
    this.port.postMessage(bytes);
  }
}
console.warn = () => {}; // newer fields of an answer than the decoder knows
const channel = new MessageChannel();
processorBridge.initialize(channel.port1);
const engine = new Engine(channel.port2);
await new Promise((done) => setTimeout(done, 1500)); // the bridge does not tell when it has started
await engine.parse(new Uint8Array(readFileSync(trace)));
await engine.notifyEof();
const answers = [];
for (const query of queries) {
  const result = await engine.query(query);
  if (result.error()) throw new Error(result.error());
  const rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    const values = result.columns().map((name) => [name, row.get(name)]);
    rows.push(Object.fromEntries(values.map(([k, v]) => [k, typeof v === 'bigint' ? Number(v) : v])));
  }
  answers.push(rows);
}
process.stdout.write(JSON.stringify(answers), () => process.exit(0));
