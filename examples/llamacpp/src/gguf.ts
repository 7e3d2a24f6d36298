/**
 * What the protocol needs of a GGUF file's header: the tokenizer's fingerprint and the vocabulary's size.
 *
 * Knows the metadata of GGUF; loads no model.
 */
import { createHash } from "node:crypto";
import { readGgufFileInfo } from "node-llama-cpp";

const CONTROL = 3;
const USER_DEFINED = 4;
const NAMED = ["bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"] as const;

export interface Vocabulary {
  fingerprint: string;
  size: number;
}

export async function readVocabulary(file: string): Promise<Vocabulary> {
  const info = await readGgufFileInfo(file, { readTensorInfo: false, logWarnings: false });
  const ggml = info.metadata.tokenizer.ggml as unknown as Record<string, unknown>;
  const tokens = ggml.tokens as string[];
  const types = (ggml.token_type as number[] | undefined) ?? [];
  const isByteLevel = ggml.model === "gpt2";
  const named = new Set(NAMED.map((each) => ggml[each]).filter((each) => each !== undefined).map(Number));
  const digest = createHash("sha256");
  tokens.forEach((token, id) => {
    const isPadding = token === `[PAD${id}]`;
    if (!isPadding && !named.has(id) && !isAdded(token, types[id], isByteLevel)) {
      digest.update(`${id}\0${isByteLevel ? byteLevelText(token) : token}\0`, "utf8");
    }
  });
  return { fingerprint: digest.digest("hex"), size: tokens.length };
}

/** Added tokens are no part of the fingerprint: models of a family have different ones. */
function isAdded(token: string, type: number | undefined, isByteLevel: boolean): boolean {
  // A byte-level vocabulary spells every token in 256 characters. One that uses others is an ordinary token.
  return (type === CONTROL || type === USER_DEFINED) && (!isByteLevel || isSpelledInBytes(token));
}

function isSpelledInBytes(token: string): boolean {
  return [...token].every((character) => ALPHABET.has(character));
}

function byteLevelText(token: string): string {
  if (isSpelledInBytes(token)) return token;
  return [...new TextEncoder().encode(token)].map((byte) => SPELLING[byte]).join("");
}

/** GPT-2's character for each byte: printable ones stand for themselves, the others follow from 256 on. */
const SPELLING = spelling();
const ALPHABET = new Set(SPELLING);

function spelling(): string[] {
  const isPrintable = (byte: number) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : next++));
}
