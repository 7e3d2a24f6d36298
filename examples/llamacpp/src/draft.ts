/**
 * The connection to a draft, and the one sequence that it drafts for.
 *
 * Reconnects for ever with growing delays, and then opens the sequence again from its tokens. Nothing here
 * waits for the draft, except `start` and `news`, for as long as they are told to. Knows no models.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Dealer } from "zeromq";
import { Mirror, type Knowledge, type Path } from "./mirror.js";
import {
  decodeFrame, encodeFrame, FrameError, MAX_FRAME_BYTES, outcome, packInts, VERSION,
  type Close, type Hello, type Incoming, type Outgoing,
} from "./wire.js";

/** A draft says something every 2 seconds, whether it is asked anything or not. */
const SILENCE_MS = 10_000;
const DELAYS_MS = [500, 1000, 2000, 4000, 8000];
const REFUSED_MS = 20_000;
const MAX_BAD_FRAMES = 3;
const OUTCOMES_BETWEEN_RESYNCS = 4;
const MOST_OUTCOMES_BETWEEN_OPENS = 64;
/** Before a declined sequence is offered again. It doubles each time. */
const DECLINED_MS = 1000;

/** The draft's refusal: another version, or another tokenizer. */
class RefusedError extends Error {}

export interface Sequence {
  /** Prompt and decided tokens. */
  text: number[];
  numPrompt: number;
  maxLength: number;
  endIds: number[];
}

interface Session extends Sequence {
  mirror: Mirror;
  isOpen: boolean;
  /** When it may be opened again, if the draft declined it for lack of room. */
  returnsAt: number;
  numDeclined: number;
  /** The outcome after which the whole tree was last asked for. */
  askedAt: number;
  numReopened: number;
}

export class Draft {
  private socket: Dealer | undefined;
  private draftHello: Hello | undefined;
  private session: Session | undefined;
  private epoch = 0;
  private readonly ending = new AbortController();
  private waiting: (() => void)[] = [];
  private over: Promise<void> = Promise.resolve();

  constructor(
    private readonly address: string,
    private readonly hello: Hello,
    private readonly lookahead: number,
    private readonly keys: string | undefined,
    private readonly log: (line: string) => void,
  ) {
    if (!address.startsWith("ipc://") && keys === undefined) {
      throw new Error(`${address} can be reached by others, so it needs keys: see --keys`);
    }
  }

  /** Connects in the background. */
  start(): void {
    this.over = this.connectForEver();
  }

  private get isOver(): boolean {
    return this.ending.signal.aborted;
  }

  get isReady(): boolean {
    return this.draftHello !== undefined;
  }

  /** Waits until the draft has said something, at most so long. */
  async news(milliseconds: number): Promise<void> {
    const ended = new AbortController();
    const said = new Promise<void>((resolve) => this.waiting.push(resolve));
    await Promise.race([said, sleep(milliseconds, undefined, { signal: ended.signal }).catch(() => {})]);
    ended.abort();
  }

  open(sequence: Sequence): void {
    this.close();
    const mirror = new Mirror(0, sequence.text);
    this.session = {
      ...sequence, mirror, isOpen: false, returnsAt: Infinity, numDeclined: 0, askedAt: 0, numReopened: 0,
    };
    this.reopen(this.session);
  }

  close(): void {
    if (this.session) this.closeSession(this.session);
    this.session = undefined;
  }

  /** Whether the draft has the sequence. */
  get isOpen(): boolean {
    return this.session?.isOpen ?? false;
  }

  path(limit: number): Path {
    return this.session?.isOpen ? this.session.mirror.path(limit) : { tokens: [], chances: [] };
  }

  knowledge(): Knowledge {
    return this.session?.isOpen ? this.session.mirror.knowledge() : "unheard";
  }

  /** Adds decided tokens to the text and tells the draft. */
  outcome(tokens: number[]): Knowledge {
    const session = this.session;
    if (!session) throw new Error("no sequence is open");
    const { mirror } = session;
    mirror.advance(tokens);
    if (session.isOpen && !tokens.every((token) => token < this.vocabSize)) this.closeSession(session);
    if (!session.isOpen) return "unheard";
    this.send([outcome(0, mirror.epoch, mirror.n, mirror.numFrames, tokens)]);
    if (mirror.isOutOfSync && mirror.n - session.askedAt >= OUTCOMES_BETWEEN_RESYNCS) this.askForTree(session);
    return mirror.knowledge();
  }

  async end(): Promise<void> {
    this.close();
    this.ending.abort();
    this.socket?.close();
    await this.over;
  }

  private async connectForEver(): Promise<void> {
    for (let numFailed = 0; !this.isOver; numFailed++) {
      let delay = DELAYS_MS[Math.min(numFailed, DELAYS_MS.length - 1)];
      try {
        await this.converse();
      } catch (error) {
        if (!this.isOver && (this.isReady || numFailed === 0)) this.log(`draft lost: ${(error as Error).message}`);
        if (this.isReady) numFailed = 0;
        if (error instanceof RefusedError) delay = REFUSED_MS;
      }
      this.lost();
      await sleep(delay, undefined, { signal: this.ending.signal }).catch(() => {});
    }
  }

  /** Ends with an error, when the connection does. */
  private async converse(): Promise<never> {
    const socket = (this.socket = new Dealer({
      linger: 0, sendTimeout: 0, receiveTimeout: SILENCE_MS, maxMessageSize: MAX_FRAME_BYTES + 64, ...this.curve(),
    }));
    let reason = `it said nothing for ${SILENCE_MS / 1000} s`;
    socket.events.on("disconnect", () => {
      // Before HELLO a connection may be tried several times; after it, its end is the end.
      if (!this.isReady || socket !== this.socket) return;
      reason = "it has hung up";
      socket.close();
    });
    socket.connect(this.address);
    this.send([this.hello]);
    for (let numBad = 0; ; ) {
      const [frame, ...more] = await socket.receive().catch(() => {
        throw new Error(reason);
      });
      try {
        if (more.length > 0) throw new FrameError("a message in parts");
        for (const message of decodeFrame(frame!, this.vocabSize)) this.take(message);
      } catch (error) {
        if (!(error instanceof FrameError) || ++numBad === MAX_BAD_FRAMES) throw error;
        this.log(`a frame of the draft was refused: ${error.message}`);
      }
      this.wake();
    }
  }

  /** CURVE keys of a folder that `ssd draft --make-keys` wrote for engines. */
  private curve(): object {
    if (this.keys === undefined) return {};
    const own = readFileSync(join(this.keys, "engine.key_secret"), "utf8");
    const draft = readFileSync(join(this.keys, "draft.key"), "utf8");
    const key = (text: string, name: string) => new RegExp(`^\\s*${name}\\s*=\\s*"(.*)"`, "m").exec(text)?.[1];
    return {
      curvePublicKey: key(own, "public-key"), curveSecretKey: key(own, "secret-key"),
      curveServerKey: key(draft, "public-key"),
    };
  }

  private get vocabSize(): number {
    return Math.min(this.hello.vocab_size, this.draftHello?.vocab_size ?? Infinity);
  }

  private take(message: Incoming): void {
    if (message.type === "hello") return this.greeted(message);
    if (message.type === "stats") return this.returnWhereDeclined(message.free_sequences ?? 1);
    const session = this.session;
    if (!session?.isOpen) return;
    if (message.type === "nodes") {
      const wasOutOfSync = session.mirror.isOutOfSync;
      for (const part of message.parts) if (part.seq === 0) session.mirror.take(part);
      if (session.mirror.isOutOfSync && !wasOutOfSync) this.askForTree(session);
    } else if (message.seq === 0 && message.epoch === session.mirror.epoch) {
      if (message.type === "close") this.declined(session, message);
      else this.openMissed(session);
    }
  }

  private greeted(hello: Hello): void {
    if (hello.refusal) throw new RefusedError(hello.refusal);
    const oldest = hello.oldest || hello.version;
    if (hello.version < VERSION || oldest > VERSION) throw new RefusedError("it speaks another version");
    if (hello.tokenizer !== this.hello.tokenizer) throw new RefusedError("its tokenizer is another");
    // A second HELLO tells us to connect again: the draft has forgotten our sequence.
    if (this.isReady) throw new Error("it has forgotten this target");
    this.draftHello = hello;
    this.log(`draft connected: ${hello.name}`);
    if (this.session) this.reopen(this.session);
  }

  /** Opens the sequence under a new epoch, if a draft is there that can take it. */
  private reopen(session: Session): void {
    const { text } = session;
    const fits = text.length + 2 <= (this.draftHello?.max_model_len || Infinity);
    session.isOpen = this.isReady && fits && text.every((token) => token < this.vocabSize);
    session.mirror = new Mirror(++this.epoch, text);
    session.returnsAt = Infinity;
    session.askedAt = 0;
    if (!session.isOpen) return;
    this.send([
      {
        type: "open", seq: 0, epoch: this.epoch, tokens: packInts(text), num_prompt: session.numPrompt,
        max_len: session.maxLength, lookahead: this.lookahead,
        sampling: { seed: 0, temperature: 0, end_ids: session.endIds },
      },
    ]);
  }

  private closeSession(session: Session): void {
    if (session.isOpen) this.send([{ type: "close", seq: 0, epoch: session.mirror.epoch }]);
    session.isOpen = false;
  }

  private askForTree(session: Session): void {
    session.askedAt = session.mirror.n;
    this.send([{ type: "resync", seq: 0, epoch: session.mirror.epoch }]);
  }

  /** The draft has missed an outcome. It says so with each further one until the sequence is opened again. */
  private openMissed(session: Session): void {
    if (session.mirror.n < Math.min(2 << session.numReopened, MOST_OUTCOMES_BETWEEN_OPENS)) return;
    session.numReopened += 1;
    this.reopen(session);
  }

  private declined(session: Session, close: Close): void {
    session.isOpen = false;
    if (close.may_return) session.returnsAt = performance.now() + DECLINED_MS * 2 ** session.numDeclined++;
    this.log(`draft declined the text: ${close.reason ?? ""}`);
  }

  private returnWhereDeclined(room: number): void {
    const { session } = this;
    if (session && room > 0 && performance.now() > session.returnsAt) this.reopen(session);
  }

  private send(messages: Outgoing[]): void {
    // What cannot be sent at once is lost, and the draft asks for it.
    this.socket?.send(encodeFrame(messages) as Uint8Array<ArrayBuffer>).catch(() => {});
  }

  private lost(): void {
    this.socket?.close();
    this.socket = undefined;
    this.draftHello = undefined;
    if (this.session) this.session.isOpen = false;
    this.wake();
  }

  private wake(): void {
    const waiting = this.waiting;
    this.waiting = [];
    for (const each of waiting) each();
  }
}
