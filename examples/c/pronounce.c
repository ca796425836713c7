/* Pronounce words with the portable bundle of g2p-en, over ONNX Runtime's C API.
 *
 *   txport export g2p-en bundle && make && ./pronounce bundle hello world
 *
 * Ids and limits are read from the graphs' metadata (docs/embedding.md). Only `vocabulary` knows g2p-en: its
 * tokenizer.json has a token for each letter. Other tokenizers need a library.
 */
#include <onnxruntime_c_api.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PORTS = 512, MOST_TOKENS = 1024, VOCABULARY = 4096 };

static const OrtApi *ort;
static OrtAllocator *allocator;
static OrtMemoryInfo *memory;

static void check(OrtStatus *status) {
  if (status == NULL) return;
  fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
  exit(1);
}

static OrtSession *load(OrtEnv *env, const char *folder, const char *file) {
  OrtSessionOptions *options;
  OrtSession *session;
  char path[4096];
  snprintf(path, sizeof path, "%s/onnx/%s", folder, file);
  check(ort->CreateSessionOptions(&options));
  check(ort->CreateSession(env, path, options, &session));
  ort->ReleaseSessionOptions(options);
  return session;
}

/* What a graph says of itself, such as "2" for `ends`; "" where it says nothing. */
static char *custom_metadata(OrtSession *session, const char *key) {
  OrtModelMetadata *metadata;
  char *value, name[64];
  snprintf(name, sizeof name, "txport.%s", key);
  check(ort->SessionGetModelMetadata(session, &metadata));
  check(ort->ModelMetadataLookupCustomMetadataMap(metadata, allocator, name, &value));
  ort->ReleaseModelMetadata(metadata);
  return value ? value : "";
}

/* The numbers of a value, apart by spaces. */
static size_t numbers(const char *text, int64_t *into, size_t count) {
  char *end;
  for (int64_t value = strtoll(text, &end, 10); end != text; value = strtoll(text, &end, 10)) {
    if (count < MOST_TOKENS) into[count++] = value;
    text = end;
  }
  return count;
}

static OrtValue *int64s(int64_t *data, size_t count) {
  const int64_t dims[] = {1, (int64_t)count};
  OrtValue *value;
  check(ort->CreateTensorWithDataAsOrtValue(memory, data, count * sizeof *data, dims, 2,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, &value));
  return value;
}

/* An empty cache with the heads and the head size of an input: (1, heads, 0, head size). */
static OrtValue *empty(OrtSession *session, size_t input) {
  const OrtTensorTypeAndShapeInfo *shape;
  OrtTypeInfo *info;
  int64_t dims[4];
  OrtValue *value;
  check(ort->SessionGetInputTypeInfo(session, input, &info));
  check(ort->CastTypeInfoToTensorInfo(info, &shape));
  check(ort->GetDimensions(shape, dims, 4));
  dims[0] = 1;
  dims[2] = 0;
  check(ort->CreateTensorAsOrtValue(allocator, dims, 4, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
  ort->ReleaseTypeInfo(info);
  return value;
}

static char *names[VOCABULARY]; /* of tokens */

/* The tokens of tokenizer.json, whose vocabulary is "token": id, "token": id, ... without escapes. */
static void read_vocabulary(const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  char *text = calloc(1, 1 << 20);
  fread(text, 1, (1 << 20) - 1, file);
  fclose(file);
  char *at = strstr(text, "\"vocab\""), *end = at ? strchr(at, '}') : NULL;
  for (at = at ? strchr(at, '{') : NULL; at && end && (at = strchr(at, '"')) && at < end;) {
    char *name = at + 1, *close = strchr(name, '"');
    const long id = strtol(strchr(close, ':') + 1, &at, 10);
    *close = 0;
    if (id >= 0 && id < VOCABULARY) names[id] = name;
  }
}

static int64_t id_of(int letter) {
  for (int64_t id = 0; id < VOCABULARY; ++id)
    if (names[id] && names[id][0] == letter && names[id][1] == 0) return id;
  fprintf(stderr, "the vocabulary has no letter %c\n", letter);
  exit(2);
}

/* Greedy search: the tokens of a target, up to an end token; -> how many there are. */
static size_t generate(OrtSession *encoder, OrtSession *decoder, int64_t *source, size_t length,
                       int64_t *target) {
  int64_t mask[MOST_TOKENS], tokens[MOST_TOKENS], ends[MOST_TOKENS];
  const size_t end_count = numbers(custom_metadata(decoder, "ends"), ends, 0);
  size_t count = numbers(custom_metadata(decoder, "start"), tokens, 0), found = 0;
  const size_t most = strtoul(custom_metadata(decoder, "longest"), NULL, 10);
  const size_t size = strtoul(custom_metadata(decoder, "vocabulary"), NULL, 10);
  const char *past = custom_metadata(decoder, "past"), *present = custom_metadata(decoder, "present");
  for (size_t place = 0; place < length; ++place) mask[place] = 1;

  const char *read[] = {"input_ids", "attention_mask"}, *made[] = {"last_hidden_state"};
  const OrtValue *given[] = {int64s(source, length), int64s(mask, length)};
  OrtValue *hidden = NULL;
  check(ort->Run(encoder, NULL, read, given, 2, made, 1, &hidden));

  /* The decoder's inputs in its own order; outputs are the logits, and then what becomes each cache. */
  const char *inputs[MOST_PORTS], *outputs[MOST_PORTS] = {"logits"};
  OrtValue *values[MOST_PORTS], *results[MOST_PORTS];
  size_t input_count, cache[MOST_PORTS], caches = 0, ids = 0;
  check(ort->SessionGetInputCount(decoder, &input_count));
  for (size_t at = 0; at < input_count && at < MOST_PORTS; ++at) {
    char *name;
    check(ort->SessionGetInputName(decoder, at, allocator, &name));
    inputs[at] = name;
    if (strcmp(name, "input_ids") == 0) {
      ids = at;
    } else if (strcmp(name, "encoder_hidden_states") == 0) {
      values[at] = hidden;
    } else if (strcmp(name, "encoder_attention_mask") == 0) {
      values[at] = int64s(mask, length);
    } else {
      char *output = malloc(strlen(present) + strlen(name) + 1);
      sprintf(output, "%s%s", present, name + strlen(past));
      values[at] = empty(decoder, at);
      cache[caches++] = at;
      outputs[caches] = output;
    }
  }
  while (found < most) {
    values[ids] = int64s(tokens, count);
    memset(results, 0, sizeof results);
    check(ort->Run(decoder, NULL, inputs, (const OrtValue *const *)values, input_count, outputs, caches + 1,
                   results));
    float *logits;
    check(ort->GetTensorMutableData(results[0], (void **)&logits));
    logits += (count - 1) * size; /* those of the last token */
    int64_t best = 0;
    for (size_t id = 1; id < size; ++id)
      if (logits[id] > logits[best]) best = (int64_t)id;
    ort->ReleaseValue(results[0]);
    ort->ReleaseValue(values[ids]);
    for (size_t each = 0; each < caches; ++each) {
      ort->ReleaseValue(values[cache[each]]);
      values[cache[each]] = results[each + 1];
    }
    for (size_t each = 0; each < end_count; ++each)
      if (best == ends[each]) return found;
    tokens[0] = target[found++] = best;
    count = 1;
  }
  return found;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s BUNDLE WORD...\n", argv[0]);
    return 2;
  }
  OrtEnv *env;
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (ort == NULL) {
    fprintf(stderr, "the header is newer than the library\n");
    return 2;
  }
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "pronounce", &env));
  check(ort->GetAllocatorWithDefaultOptions(&allocator));
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  OrtSession *encoder = load(env, argv[1], "encoder_model.onnx");
  OrtSession *decoder = load(env, argv[1], "decoder_model_merged.onnx");
  read_vocabulary(argv[1]);
  for (int word = 2; word < argc; ++word) {
    int64_t source[MOST_TOKENS], target[MOST_TOKENS];
    size_t length = numbers(custom_metadata(encoder, "source_before"), source, 0);
    for (const char *letter = argv[word]; *letter && length < MOST_TOKENS / 2; ++letter)
      source[length++] = id_of(tolower((unsigned char)*letter));
    length = numbers(custom_metadata(encoder, "source_after"), source, length);
    if (length > strtoul(custom_metadata(encoder, "source_longest"), NULL, 10)) {
      fprintf(stderr, "%s is too long\n", argv[word]);
      return 2;
    }
    const size_t count = generate(encoder, decoder, source, length, target);
    for (size_t each = 0; each < count; ++each) printf("%s%s", each ? " " : "", names[target[each]]);
    printf("\n");
  }
  return 0;
}
