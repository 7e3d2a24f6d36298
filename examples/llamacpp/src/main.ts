/** Decodes prompts with a GGUF model in llama.cpp and, if there is one, a draft: see README.md. */
import { randomUUID } from "node:crypto";
import { basename } from "node:path";
import { parseArgs } from "node:util";
import { decode, decodeAlone, type Run } from "./decode.js";
import { Draft } from "./draft.js";
import { readVocabulary } from "./gguf.js";
import { Target } from "./target.js";
import { VERSION } from "./wire.js";

const { values: options } = parseArgs({
  options: {
    target: { type: "string" },
    draft: { type: "string" },
    keys: { type: "string" },
    prompt: { type: "string", multiple: true },
    tokens: { type: "string", default: "128" },
    lookahead: { type: "string", default: "8" },
    "least-chance": { type: "string", default: "0.3" },
    "least-rows": { type: "string", default: "2" },
    "wait-ms": { type: "string" },
    "start-seconds": { type: "string", default: "10" },
    context: { type: "string", default: "2048" },
    threads: { type: "string", default: "0" },
    gpu: { type: "string", default: "auto" },
    check: { type: "boolean", default: false },
    json: { type: "boolean", default: false },
  },
});

async function main(): Promise<void> {
  if (!options.target || !options.prompt) throw new Error("--target FILE.gguf and --prompt TEXT are needed");
  const lookahead = Number(options.lookahead);
  const draft = options.draft ? await connect(options.target, options.draft, lookahead) : undefined;
  const target = await Target.load(options.target, {
    gpu: options.gpu === "false" ? false : (options.gpu as "auto"),
    threads: Number(options.threads),
    contextSize: Number(options.context),
    leastRows: Number(options["least-rows"]),
  });
  for (const text of options.prompt) {
    const prompt = target.tokenize(text);
    await waitFor(draft, 1000 * Number(options["start-seconds"]));
    const run = await decode(
      target,
      prompt,
      {
        maxTokens: Number(options.tokens),
        lookahead,
        leastChance: Number(options["least-chance"]),
        waitMs: options["wait-ms"] === undefined ? undefined : Number(options["wait-ms"]),
      },
      draft,
      (tokens) => options.json || process.stdout.write(target.text(tokens)),
    );
    const report = { ...described(run), ...(options.check ? await check(target, prompt, run) : {}) };
    process.stdout.write(options.json ? `${JSON.stringify(report)}\n` : `\n\n${lines(report)}\n\n`);
  }
  await draft?.end();
}

async function connect(file: string, address: string, lookahead: number): Promise<Draft> {
  const { fingerprint, size } = await readVocabulary(file);
  const hello = {
    type: "hello", version: VERSION, oldest: VERSION, tokenizer: fingerprint, vocab_size: size,
    name: basename(file), instance: randomUUID(),
  } as const;
  const draft = new Draft(address, hello, lookahead, options.keys, (line) => console.error(line));
  draft.start();
  return draft;
}

async function waitFor(draft: Draft | undefined, milliseconds: number): Promise<void> {
  const until = performance.now() + milliseconds;
  while (draft && !draft.isReady && performance.now() < until) await draft.news(until - performance.now());
}

function described(run: Run) {
  const { tokens, rounds, drafted, accepted, knowledge } = run;
  return {
    tokens: tokens.length,
    tokensPerSecond: rate(tokens.length - 1, run.seconds),
    rounds,
    drafted,
    accepted,
    acceptedPerRound: Number((accepted / Math.max(1, rounds)).toFixed(2)),
    ...knowledge,
    waitedMs: Math.round(run.waitedMs),
  };
}

/** Decodes again without the draft: in the same form of evaluation, and by the library's own loop. */
async function check(target: Target, prompt: number[], run: Run) {
  const alone = await decodeAlone(target, prompt, run.tokens.length);
  const library: number[] = [];
  let started = 0;
  for await (const token of target.generate(prompt)) {
    started ||= performance.now();
    if (library.push(token) === run.tokens.length) break;
  }
  const seconds = (performance.now() - started) / 1000;
  return {
    aloneTokensPerSecond: rate(alone.tokens.length - 1, alone.seconds),
    libraryTokensPerSecond: rate(library.length - 1, seconds),
    equal: isSame(alone.tokens, run.tokens),
    libraryEqual: isSame(library, run.tokens),
  };
}

function isSame(one: number[], other: number[]): boolean {
  return one.length === other.length && one.every((token, place) => token === other[place]);
}

function rate(count: number, seconds: number): number {
  return Number((count / seconds).toFixed(2));
}

function lines(report: object): string {
  return Object.entries(report).map(([name, value]) => `${name}: ${value}`).join("\n");
}

try {
  await main();
  process.exit(0);
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exit(1);
}
