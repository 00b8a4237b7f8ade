#include "sop/config.h"

#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/test.h"

static sop_config cfg;

/* To the byte: a configuration is hashed. */
static int same(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(sop_config)) == 0;
}

static sop_status read_text(const char *text)
{
    return sop_config_read(text, strlen(text), "c.yaml", &cfg);
}

/* Whether the text is refused with a sentence that holds both. */
static int refused(const char *text, const char *where, const char *why)
{
    sop_config before;
    memset(&cfg, 0x5a, sizeof cfg);
    before = cfg;
    const sop_status s = read_text(text);
    const int right = s == SOP_E_FORMAT && strstr(sop_last_error(), where) &&
                      strstr(sop_last_error(), why) && same(&cfg, &before);
    if (!right) printf("status %d: %s\n", s, s == SOP_OK ? "taken" : sop_last_error());
    return right;
}

static const char field_report[] =
    "engine:\n"
    "  modules: {rope: true, flash_attn: true, ring_attn: true, kv_cache_opt: true}\n"
    "  thresholds: {min_seq_for_ring: 65536, min_free_mem_for_ring_gb: 8.0, max_batch_for_tiled: 4}\n"
    "  fallback: {enable: true, max_retries: 3, backoff_factor: 1.5}\n";

static void the_file_of_the_field_report_loads_and_is_the_default(void)
{
    sop_config defaults;
    sop_config_defaults(&defaults);
    CHECK(read_text(field_report) == SOP_OK);
    CHECK(same(&cfg, &defaults));
    CHECK(cfg.modules.rope == 1 && cfg.modules.flash_attn == 1 && cfg.modules.ring_attn == 1 &&
          cfg.modules.kv_cache_opt == 1);
    CHECK(cfg.thresholds.min_seq_for_ring == 65536);
    CHECK(cfg.thresholds.min_free_mem_for_ring_gb == 8.0);
    CHECK(cfg.thresholds.max_batch_for_tiled == 4);
    CHECK(cfg.fallback.enable == 1 && cfg.fallback.max_retries == 3);
    CHECK(cfg.fallback.backoff_factor == 1.5);
    CHECK(cfg.memory_limit_gb == 0 && cfg.ctx == 0 && cfg.threads == 0);
    CHECK(cfg.numerics == SOP_NUMERICS_FAST && cfg.guard == SOP_GUARD_SAMPLE);
    CHECK(cfg.kv_dtype == SOP_F16 && cfg.max_step_tokens == 512);
}

static void every_key_can_be_set(void)
{
    CHECK(read_text("engine:\n"
                    "  modules: {rope: false, flash_attn: False, ring_attn: FALSE, "
                    "kv_cache_opt: false}\n"
                    "  thresholds:\n    min_seq_for_ring: 1\n    min_free_mem_for_ring_gb: 0.25\n"
                    "    max_batch_for_tiled: 0\n"
                    "  fallback: {enable: false, max_retries: 0, backoff_factor: 2}\n"
                    "  memory_limit_gb: 12.5\n  ctx: 4096\n  numerics: invariant\n  guard: off\n"
                    "  kv_dtype: \"f32\"\n  max_step_tokens: 64\n  threads: +3\n") == SOP_OK);
    CHECK(!cfg.modules.rope && !cfg.modules.flash_attn && !cfg.modules.ring_attn &&
          !cfg.modules.kv_cache_opt);
    CHECK(cfg.thresholds.min_seq_for_ring == 1);
    CHECK(cfg.thresholds.min_free_mem_for_ring_gb == 0.25);
    CHECK(cfg.thresholds.max_batch_for_tiled == 0);
    CHECK(!cfg.fallback.enable && cfg.fallback.max_retries == 0);
    CHECK(cfg.fallback.backoff_factor == 2);
    CHECK(cfg.memory_limit_gb == 12.5 && cfg.ctx == 4096 && cfg.threads == 3);
    CHECK(cfg.numerics == SOP_NUMERICS_INVARIANT && cfg.guard == SOP_GUARD_OFF);
    CHECK(cfg.kv_dtype == SOP_F32 && cfg.max_step_tokens == 64);
}

static void what_is_not_named_has_its_default(void)
{
    sop_config defaults;
    sop_config_defaults(&defaults);
    static const char *const empty[] = {"",
                                        "# nothing\n",
                                        "---\n",
                                        "{}",
                                        "engine:\n",
                                        "engine: {}",
                                        "\xef\xbb\xbf{}\n",
                                        "---\n...\n",
                                        "engine:\n  modules:\n    # rope: false\n  fallback: {}\n"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        memset(&cfg, 0x5a, sizeof cfg);
        CHECK(read_text(empty[i]) == SOP_OK);
        CHECK(same(&cfg, &defaults));
    }
}

static void an_unknown_key_names_line_key_and_the_nearest(void)
{
    CHECK(refused("engine:\n  modules:\n    rop: true\n",
                  "c.yaml:3: unknown key \"rop\" under engine.modules, did you mean "
                  "engine.modules.rope?",
                  "allowed: rope, flash_attn, ring_attn, kv_cache_opt"));
    CHECK(refused("engine:\n  rope: true\n", "c.yaml:2: ", "did you mean engine.modules.rope?"));
    CHECK(refused("\nengin: {}\n",
                  "c.yaml:2: unknown key \"engin\" under the top, did you mean engine?",
                  "allowed: engine"));
    CHECK(refused("engine: {port: 8000}\n", "c.yaml:1: unknown key \"port\" under engine;",
                  "allowed: modules, thresholds, fallback, memory_limit_gb, ctx, numerics, guard, "
                  "kv_dtype, kv_host_gb, max_step_tokens, threads"));
    CHECK(refused("engine: {\"guard\\0\": off}", "c.yaml:1: unknown key \"guard?\"", ""));
    CHECK(refused("engine: {\"thr\\neads\\e[2J\": 1}", "\"thr?eads?[2J\"", ""));
    CHECK(refused("engine: {Threads: 1}", "did you mean engine.threads?", ""));
    CHECK(refused("engine: {<<: {}}", "unknown key \"<<\"", ""));
    CHECK(refused("engine: {engine.threads: 1}", "unknown key \"engine.threads\"", ""));
}

static void a_repeated_key_names_both_lines(void)
{
    CHECK(refused("engine:\n  threads: 1\n  guard: off\n  threads: 2\n",
                  "c.yaml:4: the key engine.threads", "in line 2"));
    CHECK(refused("engine: {}\nengine: {}\n", "c.yaml:2: the key engine ", "in line 1"));
    CHECK(refused("engine:\n  modules: {rope: true, rope: true}", "c.yaml:2:", "in line 2"));
}

static void a_float_is_a_float_however_it_is_written(void)
{
    static const char *const ways[] = {"1e-5",  "1.0e-5",   "1E-5",    "1.e-05",
                                       ".1e-4", "+0.00001", "10.0e-6", "0.1E-4"};
    char text[100];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        (void)snprintf(text, sizeof text, "engine: {memory_limit_gb: %s}", ways[i]);
        CHECK(read_text(text) == SOP_OK);
        CHECK(cfg.memory_limit_gb == 1e-5);
    }
    CHECK(read_text("engine: {memory_limit_gb: 8}") == SOP_OK && cfg.memory_limit_gb == 8);
    CHECK(read_text("engine: {memory_limit_gb: 01.5}") == SOP_OK && cfg.memory_limit_gb == 1.5);
    sop_config zero;
    CHECK(read_text("engine: {memory_limit_gb: 0}") == SOP_OK);
    zero = cfg;
    CHECK(read_text("engine: {memory_limit_gb: -0.0}") == SOP_OK);
    CHECK(same(&zero, &cfg));
}

static void a_quoted_number_or_boolean_is_refused_with_the_reason(void)
{
    CHECK(refused("engine:\n  threads: \"8\"\n", "c.yaml:2: engine.threads: \"8\" is quoted",
                  "allowed: a whole number from 0 to 1024"));
    CHECK(refused("engine: {memory_limit_gb: '8'}", "is quoted", "a number from 0 to 1e+06"));
    CHECK(refused("engine: {modules: {rope: 'true'}}", "is quoted", "false, true"));
    CHECK(refused("engine: {threads: |\n 8\n}", "", ""));
    CHECK(refused("engine:\n  threads: >\n    8\n", "c.yaml:2", "is quoted"));
    CHECK(refused("engine: {threads: ''}", "is quoted", ""));
}

static void words_that_only_yaml_1_1_takes_for_booleans_are_refused_with_the_reason(void)
{
    static const char *const words[] = {"no", "yes", "on", "off", "n", "y", "No", "YES"};
    char text[100];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        (void)snprintf(text, sizeof text, "engine:\n  fallback:\n    enable: %s", words[i]);
        CHECK(refused(text, "c.yaml:3: engine.fallback.enable: ",
                      "is a boolean in YAML 1.1 and a text in 1.2; allowed: false, true"));
    }
    CHECK(refused("engine: {fallback: {enable: 1}}", "\"1\" is not a value of this key",
                  "allowed: false, true"));
    CHECK(read_text("engine: {guard: off}") == SOP_OK && cfg.guard == SOP_GUARD_OFF);
}

static void a_number_that_is_none_or_another_one_in_yaml_1_1_is_refused(void)
{
    static const char *const other[] = {"010", "0x10", "0o10", "1_000", "1:30", "00", "-0x1"};
    static const char *const none[] = {"many", ".inf", ".nan", "1.2.3", "+",   ".",
                                       "1e",   "e5",   "12 3", "0b1",   "1,5", "inf",
                                       "nan",  "~",    "null", "1e+",   "--1"};
    char text[100];
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        (void)snprintf(text, sizeof text, "engine: {threads: %s}", other[i]);
        CHECK(refused(text, other[i], "is read in different ways by YAML 1.1 and 1.2"));
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        (void)snprintf(text, sizeof text, "engine:\n  memory_limit_gb: %s", none[i]);
        CHECK(refused(text, "c.yaml:2: engine.memory_limit_gb: ", "is not a number"));
    }
    CHECK(refused("engine: {threads: 1.5}", "\"1.5\" is not a whole number", "0 to 1024"));
    CHECK(refused("engine: {threads: 1e2}", "is not a whole number", "0 to 1024"));
}

static void a_value_out_of_range_names_the_range(void)
{
    CHECK(refused("engine: {threads: 1025}", "engine.threads: \"1025\" is out of range",
                  "allowed: a whole number from 0 to 1024"));
    CHECK(refused("engine: {threads: -1}", "out of range", "0 to 1024"));
    CHECK(refused("engine: {threads: 99999999999999999999}", "out of range", "0 to 1024"));
    CHECK(refused("engine: {max_step_tokens: 0}", "out of range", "1 to 65536"));
    CHECK(refused("engine: {memory_limit_gb: 1e999}", "out of range", "0 to 1e+06"));
    CHECK(refused("engine: {memory_limit_gb: -1e-9}", "out of range", ""));
    CHECK(refused("engine: {fallback: {backoff_factor: 0.5}}", "out of range", "from 1 to 100"));
    CHECK(refused("engine: {guard: sometimes}", "engine.guard: \"sometimes\" is not a value",
                  "allowed: off, sample, always"));
    CHECK(refused("engine: {kv_dtype: F16}", "is not a value", "allowed: f32, f16, i8, f8"));
    CHECK(refused("engine: {guard: \"off\\0\"}", "holds a zero byte", ""));
}

static void the_wrong_kind_of_value_is_refused(void)
{
    CHECK(refused("engine:\n  threads: [1, 2]\n",
                  "c.yaml:2: engine.threads: a list is no single value", "0 to 1024"));
    CHECK(refused("engine: {threads: {a: 1}}", "a mapping is no single value", ""));
    CHECK(refused("engine: {threads: }", "has no value", ""));
    CHECK(refused("engine:\n  threads:\n  guard: off\n",
                  "c.yaml:", "engine.threads: \"\" has no value"));
    CHECK(refused("engine: 5", "engine: \"5\" is no mapping", "modules, thresholds"));
    CHECK(refused("engine: []", "engine: a list is no mapping", ""));
    CHECK(refused("engine: {modules: ''}", "engine.modules: \"\" is no mapping", ""));
    CHECK(refused("- engine", "c.yaml:1: the file is no mapping", ""));
    CHECK(refused("engine", "the file is no mapping", ""));
    CHECK(refused("? [a]\n: b\n", "a key is a list or a mapping", ""));
    CHECK(refused("engine: {{a: 1}: 2}", "engine: a key is a list or a mapping", ""));
}

static void anchors_aliases_tags_and_second_documents_are_refused(void)
{
    CHECK(refused("engine: &a {}", "c.yaml:1: engine: anchors", ""));
    CHECK(refused("engine: {threads: &a 1}", "engine.threads: anchors", ""));
    CHECK(
        refused("engine: {threads: *a}", "engine.threads: anchors (&...) and aliases (*...)", ""));
    CHECK(refused("engine: {&a threads: 1}", "engine: anchors", ""));
    CHECK(refused("&a engine: {}", "the file: anchors", ""));
    CHECK(refused("engine: {threads: !!int 1}", "engine.threads: tags", ""));
    CHECK(refused("engine: !x {}", "engine: tags", ""));
    CHECK(refused("!!map {}", "the file: tags", ""));
    CHECK(refused("engine: {}\n---\nengine: {}\n", "c.yaml:2: a second document starts here", ""));
}

static void what_is_no_yaml_names_the_line(void)
{
    CHECK(refused("engine:\n  threads: 1\n guard: off\n", "c.yaml:3: not YAML: ", ""));
    CHECK(refused("engine:\n\tthreads: 1\n", "c.yaml:2: not YAML: ", ""));
    CHECK(refused("engine: {threads: 1\n", "c.yaml:2: not YAML: ", ""));
    CHECK(refused("engine:\n  guard: \xff\n", "c.yaml:2: not YAML: ", ""));
    CHECK(refused("engine:\n\n\n  guard: \x01\n", "c.yaml:4: not YAML: ", ""));
    CHECK(refused("engine: {guard: \"off", "not YAML: ", ""));
}

static void deep_and_big_files_are_refused_at_once(void)
{
    enum { BIG = 70000 };
    char *text = malloc(BIG + 1);
    memset(text, '[', 60000);
    text[60000] = 0;
    CHECK(refused(text, "c.yaml:1: ", "no mapping"));
    memcpy(text, "engine: {threads: ", 18);
    CHECK(refused(text, "c.yaml:1: engine.threads: a list is no single value", ""));
    memset(text, '#', BIG);
    CHECK(sop_config_read(text, BIG, "c.yaml", &cfg) == SOP_E_LIMIT);
    CHECK(strstr(sop_last_error(), "70000 bytes") && strstr(sop_last_error(), "65536"));
    text[65536] = 0;
    CHECK(read_text(text) == SOP_OK);
    (void)snprintf(text, BIG, "engine: {threads: ");
    memset(text + 18, '\xc3', 60000);
    for (int i = 19; i < 60000; i += 2) text[i] = '\xa4';
    (void)snprintf(text + 60000, 2, "}");
    CHECK(refused(text, "\xc3\xa4...\" is not a number", ""));
    free(text);
}

static void what_is_printed_reads_back_the_same_in_any_locale(void)
{
    static const char *const locales[] = {"C", "de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR"};
    char text[4096];
    sop_config odd;
    int other = 0;
    sop_config_defaults(&odd);
    odd.memory_limit_gb = 0.1 + 0.2;
    odd.fallback.backoff_factor = 1.0 + 0x1p-52;
    odd.thresholds.min_seq_for_ring = 2147483647;
    odd.guard = SOP_GUARD_OFF;
    odd.modules.flash_attn = 0;
    for (size_t i = 0; i < sizeof locales / sizeof *locales; i++) {
        if (!setlocale(LC_ALL, locales[i])) continue;
        other += i > 0;
        const size_t n = sop_config_print(&odd, text, sizeof text);
        CHECK(n == strlen(text));
        CHECK(read_text(text) == SOP_OK);
        CHECK(same(&cfg, &odd));
        CHECK(uselocale((locale_t)0) == LC_GLOBAL_LOCALE);
    }
    (void)setlocale(LC_ALL, "C");
    if (!other) SKIP("a locale with a decimal comma", "none of de_DE and fr_FR is installed");
    char little[10];
    memset(little, 'x', sizeof little);
    CHECK(sop_config_print(&odd, little, 8) == strlen(text));
    CHECK(strcmp(little, "engine:") == 0 && little[8] == 'x');
    CHECK(sop_config_print(&odd, NULL, 0) == strlen(text));
}

static void a_file_is_read_or_the_error_names_it(void)
{
    char path[] = "/tmp/superop_config_XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(write(fd, field_report, sizeof field_report - 1) == sizeof field_report - 1);
    CHECK(sop_config_load(path, &cfg) == SOP_OK && cfg.fallback.max_retries == 3);
    CHECK(ftruncate(fd, 80000) == 0);
    CHECK(sop_config_load(path, &cfg) == SOP_E_LIMIT && strstr(sop_last_error(), path));
    CHECK(ftruncate(fd, 0) == 0);
    CHECK(sop_config_load(path, &cfg) == SOP_OK);
    CHECK(pwrite(fd, "x: 1\n", 5, 0) == 5);
    CHECK(sop_config_load(path, &cfg) == SOP_E_FORMAT && strstr(sop_last_error(), path));
    (void)close(fd);
    (void)unlink(path);
    CHECK(sop_config_load(path, &cfg) == SOP_E_IO);
    CHECK(strstr(sop_last_error(), path) && strstr(sop_last_error(), "No such file"));
    CHECK(sop_config_load("/", &cfg) == SOP_E_IO);
}

/* docs/configuration.md has a row "| `engine.threads` | ... | default | allowed | ... |" for each. */
static void the_documentation_names_every_key_with_its_default_and_what_it_allows(void)
{
    FILE *f = fopen(SOP_TEST_DATA "/../../docs/configuration.md", "r");
    CHECK(f != NULL);
    if (!f) return;
    char *doc = calloc(1, 1 << 16), text[4096], section[2][64] = {"", ""}, row[200];
    CHECK(fread(doc, 1, (1 << 16) - 1, f) > 0);
    (void)fclose(f);
    sop_config defaults;
    sop_config_defaults(&defaults);
    (void)sop_config_print(&defaults, text, sizeof text);
    int rows = 0;
    char *save = NULL;
    for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        const size_t indent = strspn(l, " ") / 2;
        char *colon = strchr(l, ':'), *hash = strstr(l, " # ");
        *colon = 0;
        if (!hash) {
            if (indent < 2)
                (void)snprintf(section[indent], sizeof section[0], "%s.", l + 2 * indent);
            continue;
        }
        *hash = 0;
        (void)snprintf(row, sizeof row, "| `%s%s%s` | %s | %s |", section[0],
                       indent == 2 ? section[1] : "", l + 2 * indent, colon + 2, hash + 3);
        if (!strstr(doc, row)) printf("not in docs/configuration.md: %s\n", row);
        CHECK(strstr(doc, row));
        rows++;
    }
    CHECK(rows == 18);
    CHECK(strstr(doc, field_report + strlen("engine:\n")));
    free(doc);
}

int main(void)
{
    RUN(the_file_of_the_field_report_loads_and_is_the_default);
    RUN(every_key_can_be_set);
    RUN(what_is_not_named_has_its_default);
    RUN(an_unknown_key_names_line_key_and_the_nearest);
    RUN(a_repeated_key_names_both_lines);
    RUN(a_float_is_a_float_however_it_is_written);
    RUN(a_quoted_number_or_boolean_is_refused_with_the_reason);
    RUN(words_that_only_yaml_1_1_takes_for_booleans_are_refused_with_the_reason);
    RUN(a_number_that_is_none_or_another_one_in_yaml_1_1_is_refused);
    RUN(a_value_out_of_range_names_the_range);
    RUN(the_wrong_kind_of_value_is_refused);
    RUN(anchors_aliases_tags_and_second_documents_are_refused);
    RUN(what_is_no_yaml_names_the_line);
    RUN(deep_and_big_files_are_refused_at_once);
    RUN(what_is_printed_reads_back_the_same_in_any_locale);
    RUN(a_file_is_read_or_the_error_names_it);
    RUN(the_documentation_names_every_key_with_its_default_and_what_it_allows);
    return test_report();
}
