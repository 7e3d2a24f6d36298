/**
 * A GGUF model in llama.cpp that decides tokens greedily, several positions in one batch.
 *
 * llama.cpp computes a batch of one row by other kernels than a larger one, so its logits may differ in their
 * last bits, and so may tokens that are nearly as likely as the best. Therefore each evaluation has at least
 * `leastRows` rows, with and without a draft (README.md says what was measured). Knows no drafts.
 */
import {
  getLlama, LlamaLogLevel, type ControlledEvaluateInputItem, type LlamaContextSequence, type LlamaModel,
  type LlamaOptions, type Token,
} from "node-llama-cpp";

export interface TargetOptions {
  gpu: LlamaOptions["gpu"];
  threads: number;
  contextSize: number;
  leastRows: number;
}

export class Target {
  private constructor(
    private readonly model: LlamaModel,
    private readonly sequence: LlamaContextSequence,
    private readonly leastRows: number,
  ) {}

  static async load(file: string, options: TargetOptions): Promise<Target> {
    const { gpu, threads, contextSize } = options;
    const llama = await getLlama({ gpu, build: "never", logLevel: LlamaLogLevel.error });
    const model = await llama.loadModel({ modelPath: file });
    // Flash attention computes rows one by one: on one thread a row's bits do not depend on its batch.
    const context = await model.createContext({ contextSize, threads, flashAttention: true });
    return new Target(model, context.getSequence(), options.leastRows);
  }

  tokenize(text: string): number[] {
    return this.model.tokenize(text, false);
  }

  text(tokens: number[]): string {
    return this.model.detokenize(tokens as Token[], true);
  }

  isEnd(token: number): boolean {
    return this.model.isEogToken(token as Token);
  }

  get endIds(): number[] {
    const { eos, eot } = this.model.tokens;
    return [...new Set([eos, eot])].filter((each) => each !== null);
  }

  /** Reads a prompt into an empty context; returns the token that follows. */
  async read(prompt: number[]): Promise<number> {
    await this.sequence.clearHistory();
    const [next] = await this.evaluate(prompt, prompt.length - 1);
    return next!;
  }

  /** Evaluates tokens in one batch; returns the next token after each. */
  async verify(tokens: number[]): Promise<number[]> {
    const length = this.sequence.nextTokenIndex;
    const filling = Array<number>(Math.max(0, this.leastRows - tokens.length)).fill(tokens[0]!);
    const next = await this.evaluate([...tokens, ...filling], 0);
    await this.forgetBeyond(length + tokens.length);
    return next.slice(0, tokens.length);
  }

  async forgetBeyond(length: number): Promise<void> {
    const end = this.sequence.nextTokenIndex;
    if (end > length) await this.sequence.eraseContextTokenRanges([{ start: length, end }]);
  }

  /** The library's own loop, a token at a time. */
  async *generate(prompt: number[]): AsyncGenerator<number> {
    await this.sequence.clearHistory();
    yield* this.sequence.evaluate(prompt as Token[], { temperature: 0, yieldEogToken: true });
  }

  private async evaluate(tokens: number[], first: number): Promise<number[]> {
    const input = tokens.map((token, place): ControlledEvaluateInputItem => {
      if (place < first) return token as Token;
      return [token as Token, { generateNext: { token: true, options: { temperature: 0 } } }];
    });
    const output = await this.sequence.controlledEvaluate(input);
    return output.slice(first).map((each) => each!.next.token!);
  }
}
