/**
 * Messages of the draft protocol, version 4 (docs/protocol.md), and their frames: msgpack lists of maps.
 *
 * Checks what it decodes: a frame that breaks a rule is a FrameError. Knows no sockets and no trees.
 */
import { decode, encode } from "@msgpack/msgpack";

export const VERSION = 4;
export const MAX_FRAME_BYTES = 4 << 20;
const MAX_MESSAGES = 1024;
const MAX_NODES = 4096;

/** The other side sent something that the protocol does not allow. */
export class FrameError extends Error {}

export interface Hello {
  type: "hello";
  version: number;
  oldest?: number;
  tokenizer: string;
  vocab_size: number;
  name: string;
  instance: string;
  max_model_len?: number;
  refusal?: string;
}

/** A sequence to draft for, with all its tokens. */
export interface Open {
  type: "open";
  seq: number;
  epoch: number;
  tokens: Uint8Array;
  num_prompt: number;
  max_len: number;
  lookahead: number;
  sampling: { seed: number; temperature: number; end_ids: number[] };
}

/** From the target: send me your tree. From the draft: send me your tokens, by OPEN. */
export interface Resync {
  type: "resync";
  seq: number;
  epoch: number;
}

export interface Close {
  type: "close";
  seq: number;
  epoch: number;
  reason?: string;
  may_return?: boolean;
}

export interface Stats {
  type: "stats";
  free_sequences?: number | null;
}

export interface Outcome {
  type: "outcome";
  heads: Uint8Array;
  tokens: Uint8Array;
}

export interface Node {
  id: number;
  parent: number;
  token: number;
  logprob: number;
}

/** What NODES says of one sequence. */
export interface TreePart {
  seq: number;
  epoch: number;
  /** Of this frame, from 0. A gap means that one is missing. */
  number: number;
  /** The last outcome that the draft had applied. */
  n: number;
  root: number;
  /** Tokens of the text up to the root. */
  length: number;
  isFull: boolean;
  nodes: Node[];
}

export type Outgoing = Hello | Open | Outcome | Resync | Close;
export type Incoming = Hello | Resync | Close | Stats | { type: "nodes"; parts: TreePart[] };

export function encodeFrame(messages: Outgoing[]): Uint8Array {
  return encode(messages);
}

/** The messages of a frame; FrameError if it breaks a rule. */
export function decodeFrame(frame: Uint8Array, vocabSize: number): Incoming[] {
  if (frame.length > MAX_FRAME_BYTES) throw new FrameError(`a frame of ${frame.length} bytes`);
  let messages: unknown;
  try {
    messages = decode(frame);
  } catch (error) {
    throw new FrameError(`not msgpack: ${String(error)}`);
  }
  if (!Array.isArray(messages) || messages.length > MAX_MESSAGES) throw new FrameError("no list of messages");
  return messages.map((each) => decodeMessage(each, vocabSize));
}

function decodeMessage(said: unknown, vocabSize: number): Incoming {
  if (typeof said !== "object" || said === null) throw new FrameError("a message is no map");
  const message = said as Record<string, unknown>;
  switch (message.type) {
    case "hello":
      numbers(message, "version", "vocab_size");
      return message as unknown as Hello;
    case "resync":
    case "close":
      numbers(message, "seq", "epoch");
      return message as unknown as Resync | Close;
    case "stats":
      return message as unknown as Stats;
    case "nodes":
      return { type: "nodes", parts: decodeNodes(message, vocabSize) };
    default:
      throw new FrameError(`a message of type ${String(message.type)}`);
  }
}

function numbers(message: Record<string, unknown>, ...names: string[]): void {
  const wrong = names.find((name) => !Number.isInteger(message[name]) || Number(message[name]) < 0);
  if (wrong !== undefined) throw new FrameError(`${wrong} of ${String(message.type)} is no number`);
}

function decodeNodes(message: Record<string, unknown>, vocabSize: number): TreePart[] {
  const [seqs = [], epochs = [], frames = [], outcomes = [], roots = [], lengths = [], counts = [], fulls = []] =
    columns(message.heads, 8, 8, (view, at) => Number(view.getBigInt64(at, true)));
  const [ids = [], parents = [], tokens = []] = columns(message.nodes, 4, 3, (view, at) => view.getInt32(at, true));
  const [logprobs = []] = columns(message.logprobs, 4, 1, (view, at) => view.getFloat32(at, true));
  if (counts.some((each) => each < 0 || each > MAX_NODES)) throw new FrameError("a number of nodes is out of range");
  if (logprobs.length !== ids.length || counts.reduce((sum, each) => sum + each, 0) !== ids.length) {
    throw new FrameError("the columns of NODES are of unlike length");
  }
  let start = 0;
  return seqs.map((seq, row) => {
    const first = start;
    start += counts[row]!;
    const part = {
      seq,
      epoch: epochs[row]!,
      number: frames[row]!,
      n: outcomes[row]!,
      root: roots[row]!,
      length: lengths[row]!,
      isFull: fulls[row] === 1,
      nodes: ids.slice(first, start).map((id, place) => ({
        id,
        parent: parents[first + place]!,
        token: tokens[first + place]!,
        logprob: logprobs[first + place]!,
      })),
    };
    checkNodes(part, vocabSize);
    return part;
  });
}

function checkNodes(part: TreePart, vocabSize: number): void {
  let before = part.root;
  for (const { id, parent, token, logprob } of part.nodes) {
    if (id <= before || parent < 0 || parent >= id) throw new FrameError("a node's id is out of order");
    if (token < 0 || token >= vocabSize) throw new FrameError("a token is not in the vocabulary");
    if (!(logprob <= 0)) throw new FrameError("a log-probability is above 0, or no number");
    before = id;
  }
}

function columns(packed: unknown, size: number, count: number, read: (view: DataView, at: number) => number) {
  if (!(packed instanceof Uint8Array) || packed.length % (size * count) !== 0) {
    throw new FrameError("columns of NODES are missing or of unlike length");
  }
  const view = new DataView(packed.buffer, packed.byteOffset, packed.length);
  const length = packed.length / size / count;
  return Array.from({ length: count }, (_, column) =>
    Array.from({ length }, (_, row) => read(view, size * (column * length + row))),
  );
}

export function packInts(values: readonly number[]): Uint8Array {
  const view = new DataView(new ArrayBuffer(4 * values.length));
  values.forEach((value, place) => view.setInt32(4 * place, value, true));
  return new Uint8Array(view.buffer);
}

/** The n-th outcome of one sequence, and how many of its frames have arrived. */
export function outcome(seq: number, epoch: number, n: number, numFrames: number, tokens: number[]): Outcome {
  const heads = BigInt64Array.of(...[seq, epoch, n, numFrames, tokens.length].map(BigInt));
  const view = new DataView(new ArrayBuffer(8 * heads.length));
  heads.forEach((value, place) => view.setBigInt64(8 * place, value, true));
  return { type: "outcome", heads: new Uint8Array(view.buffer), tokens: packInts(tokens) };
}
