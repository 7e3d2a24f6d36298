/** Greedy decoding with a draft, or without one. Every token is the target's own. */
import { setImmediate as turn } from "node:timers/promises";
import type { Draft } from "./draft.js";
import type { Knowledge } from "./mirror.js";
import type { Target } from "./target.js";

export interface Limits {
  maxTokens: number;
  lookahead: number;
  /** A drafted token is verified if the text runs through it with at least this probability. */
  leastChance: number;
  /** The longest wait for a draft that is late; undefined: as long as waiting gains time. */
  waitMs?: number | undefined;
}

export interface Run {
  tokens: number[];
  seconds: number;
  rounds: number;
  drafted: number;
  accepted: number;
  waitedMs: number;
  /** What was known when a verification ended. */
  knowledge: Record<Knowledge, number>;
}

/** Decodes a token a step, in the same form of evaluation as with a draft. */
export async function decodeAlone(target: Target, prompt: number[], maxTokens: number): Promise<Run> {
  return decode(target, prompt, { maxTokens, lookahead: 0, leastChance: 1 });
}

export async function decode(
  target: Target, prompt: number[], limits: Limits, draft?: Draft, emit: (tokens: number[]) => void = () => {},
): Promise<Run> {
  const run: Run = {
    tokens: [], seconds: 0, rounds: 0, drafted: 0, accepted: 0, waitedMs: 0,
    knowledge: { hit: 0, late: 0, unknown: 0, unheard: 0 },
  };
  const wait = new Wait(limits.waitMs);
  draft?.open({
    text: [...prompt], numPrompt: prompt.length, maxLength: prompt.length + limits.maxTokens, endIds: target.endIds,
  });
  let decided = [await target.read(prompt)];
  const started = performance.now();
  for (;;) {
    run.tokens.push(...decided);
    emit(decided);
    const knowledge = draft?.outcome(decided);
    const last = decided.at(-1)!;
    const left = limits.maxTokens - run.tokens.length;
    if (left <= 0 || target.isEnd(last)) break;
    if (knowledge) run.knowledge[knowledge] += 1;
    const path = draft ? await propose(draft, limits, Math.min(limits.lookahead, left - 1), wait) : [];
    const length = prompt.length + run.tokens.length - 1;
    const begun = performance.now();
    const next = await target.verify([last, ...path]);
    const milliseconds = performance.now() - begun;
    const numAccepted = countAgreeing(path, next, target);
    await target.forgetBeyond(length + 1 + numAccepted);
    decided = next.slice(0, numAccepted + 1);
    wait.note(path.length, numAccepted, milliseconds);
    run.rounds += 1;
    run.drafted += path.length;
    run.accepted += numAccepted;
  }
  draft?.close();
  run.seconds = (performance.now() - started) / 1000;
  run.waitedMs = wait.waitedMs;
  return run;
}

/** The first drafted tokens that the target decided too. Nothing follows an end token. */
function countAgreeing(path: number[], next: number[], target: Target): number {
  const first = path.findIndex((token, place) => token !== next[place] || target.isEnd(token));
  return first < 0 ? path.length : first;
}

async function propose(draft: Draft, limits: Limits, most: number, wait: Wait): Promise<number[]> {
  // Two turns of the event loop, so that frames are read which came during the verification.
  await turn();
  await turn();
  if (most > 0) await wait.forDraft(draft);
  const { tokens, chances } = draft.path(most);
  return tokens.filter((_, place) => chances[place]! >= limits.leastChance);
}

/** Waits for a late draft no longer than that gains: its accepted tokens would cost a step each without it. */
class Wait {
  waitedMs = 0;
  private stepMs = 0;
  private accepted = 1;
  private isInVain = false;

  constructor(private readonly fixedMs: number | undefined) {}

  /** After a round. */
  note(numDrafted: number, numAccepted: number, milliseconds: number): void {
    if (numDrafted > 0) {
      this.accepted += 0.1 * (numAccepted - this.accepted);
      this.isInVain = false;
    } else {
      this.stepMs += (this.stepMs ? 0.2 : 1) * (milliseconds - this.stepMs);
    }
  }

  async forDraft(draft: Draft): Promise<void> {
    const longest = draft.knowledge() === "hit" ? 0 : (this.fixedMs ?? this.worthMs(draft));
    if (longest === 0) return;
    const started = performance.now();
    const until = started + longest;
    while (draft.isOpen && draft.knowledge() !== "hit" && performance.now() < until) {
      await draft.news(until - performance.now());
    }
    this.isInVain = draft.knowledge() !== "hit";
    this.waitedMs += performance.now() - started;
  }

  private worthMs(draft: Draft): number {
    // After a wait in vain the draft must be in time once before it is waited for again.
    return draft.knowledge() === "unheard" || this.isInVain ? 0 : this.accepted * this.stepMs;
  }
}
