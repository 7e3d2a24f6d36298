/**
 * The target's copy of the draft's tree for one sequence.
 *
 * Frames and outcomes may come in any order: they are matched by numbers, never by time. When a verification
 * ends, the root moves along its tokens at once. No frame can change the text. Knows no sockets and no models.
 */
import type { TreePart } from "./wire.js";

interface Known {
  token: number;
  logprob: number;
  /** The likeliest first. */
  children: number[];
}

/** What is known when a verification ends, about what follows. */
export type Knowledge = "hit" | "late" | "unknown" | "unheard";

export interface Path {
  tokens: number[];
  /** The probability that the text runs through each token, as the draft sees it. */
  chances: number[];
}

export class Mirror {
  /** Outcomes so far. */
  n = 0;
  /** Frames that arrived. */
  numFrames = 0;
  isOutOfSync = false;
  private readonly nodes = new Map<number, Known>();
  private root = -1;
  /** Tokens of the text up to the root. It is behind the text where the draft is. */
  private rootLength = 0;
  private lengthBefore = 0;
  private largest = -1;
  private wasHeard = false;

  /** `text` grows with each outcome, by `advance`. */
  constructor(
    readonly epoch: number,
    private readonly text: number[],
  ) {}

  /** Takes in what a frame says of the sequence, or drops it. */
  take(part: TreePart): void {
    if (part.epoch !== this.epoch || part.number < this.numFrames || part.n > this.n) return;
    if (!part.isFull && (this.isOutOfSync || part.number > this.numFrames)) {
      this.isOutOfSync = true;
      return;
    }
    this.numFrames = part.number + 1;
    this.wasHeard = true;
    if (part.isFull) this.nodes.clear();
    if (this.contradicts(part)) {
      this.isOutOfSync = true;
      return;
    }
    if (part.isFull || part.length > this.rootLength) this.placeRoot(part);
    this.graft(part);
    this.follow();
  }

  /** Moves the root along the tokens of an outcome. */
  advance(tokens: number[]): Knowledge {
    this.lengthBefore = this.text.length;
    this.text.push(...tokens);
    this.n += 1;
    this.follow();
    this.forgetLostBranches();
    return this.knowledge();
  }

  knowledge(): Knowledge {
    if (this.isOutOfSync || !this.wasHeard) return "unheard";
    const isBehind = this.rootLength < this.lengthBefore;
    if (isBehind || !this.nodes.get(this.root)?.children.length) return "late";
    return this.rootLength === this.text.length ? "hit" : "unknown";
  }

  /** The likeliest known continuation of the text. */
  path(limit: number): Path {
    const path: Path = { tokens: [], chances: [] };
    if (this.isOutOfSync || this.rootLength !== this.text.length) return path;
    let node = this.nodes.get(this.root);
    for (let value = 0; path.tokens.length < limit; ) {
      node = node && this.nodes.get(node.children[0] ?? -1);
      if (!node) break;
      value += node.logprob;
      path.tokens.push(node.token);
      path.chances.push(Math.exp(value));
    }
    return path;
  }

  private contradicts(part: TreePart): boolean {
    const behind = this.text.length - part.length;
    if (part.n === this.n ? behind !== 0 : behind <= 0) return true;
    if (part.isFull) return false;
    if (part.length === this.rootLength && part.root !== this.root) return true;
    // All children of a node come in one frame.
    const isAgain = part.nodes.some(({ parent }) => this.nodes.get(parent)?.children.length);
    return isAgain || (part.nodes.length > 0 && part.nodes[0]!.id <= this.largest);
  }

  /** After a miss the draft begins again from a root of its own; a whole tree brings its root too. */
  private placeRoot(part: TreePart): void {
    this.root = part.root;
    this.rootLength = part.length;
    this.largest = Math.max(this.largest, part.root);
    this.isOutOfSync = false;
    if (!this.nodes.has(part.root)) this.nodes.set(part.root, { token: -1, logprob: 0, children: [] });
  }

  private graft(part: TreePart): void {
    for (const { id, parent, token, logprob } of part.nodes) {
      this.largest = Math.max(this.largest, id);
      // A node whose parent is gone belongs to a lost branch.
      const above = this.nodes.get(parent);
      if (!above) continue;
      above.children.push(id);
      this.nodes.set(id, { token, logprob, children: [] });
    }
  }

  private follow(): void {
    while (this.rootLength < this.text.length) {
      const next = this.text[this.rootLength];
      const children = this.nodes.get(this.root)?.children ?? [];
      const child = children.find((id) => this.nodes.get(id)!.token === next);
      if (child === undefined) return;
      this.root = child;
      this.rootLength += 1;
    }
  }

  private forgetLostBranches(): void {
    const kept = new Set<number>();
    const waiting = [this.root];
    for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
      kept.add(id);
      waiting.push(...(this.nodes.get(id)?.children ?? []));
    }
    for (const id of this.nodes.keys()) if (!kept.has(id)) this.nodes.delete(id);
  }
}
