/* A Genie app: asks one question and prints the answer as it comes.

   It declares the functions that it calls itself, so no SDK is needed. On a phone it runs as it stands; here Genie finds our
   libraries in the folder of links that it is loaded from.

   openhtp genie links lib
   cc -O2 examples/c/genie_chat.c -o genie_chat -ldl
   cd BUNDLE && ../genie_chat ../lib/libGenie.so genie_config.json "It was a fine" 40 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *handle;
typedef void (*piece_callback)(const char *text, int32_t code, const void *user);

static int32_t (*make_config)(const char *json, handle *config);
static int32_t (*free_config)(handle config);
static int32_t (*make_dialog)(handle config, handle *dialog);
static int32_t (*limit_tokens)(handle dialog, uint32_t most);
static int32_t (*ask)(handle dialog, const char *prompt, int32_t sentence, piece_callback told, const void *user);
static int32_t (*free_dialog)(handle dialog);

static const struct {
    const char *name;
    void *place;
} functions[] = {
    {"GenieDialogConfig_createFromJson", &make_config}, {"GenieDialogConfig_free", &free_config},
    {"GenieDialog_create", &make_dialog},               {"GenieDialog_setMaxNumTokens", &limit_tokens},
    {"GenieDialog_query", &ask},                        {"GenieDialog_free", &free_dialog},
};

static void need(int32_t status, const char *call)
{
    if (status < 0) {
        fprintf(stderr, "%s answered %d\n", call, status);
        exit(1);
    }
}

static void print_piece(const char *text, int32_t code, const void *user)
{
    (void)code, (void)user;
    if (text)
        fputs(text, stdout);
    fflush(stdout);
}

static char *read_file(const char *path)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        exit(1);
    }
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

int main(int count, char **words)
{
    if (count != 5) {
        fprintf(stderr, "genie_chat LIBGENIE CONFIG PROMPT TOKENS\n");
        return 2;
    }
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!(*(void **)functions[i].place = dlsym(library, functions[i].name))) {
            fprintf(stderr, "%s is missing\n", functions[i].name);
            return 1;
        }
    handle config, dialog;
    need(make_config(read_file(words[2]), &config), "createFromJson");
    need(make_dialog(config, &dialog), "create");
    need(limit_tokens(dialog, (uint32_t)atoi(words[4])), "setMaxNumTokens");
    need(ask(dialog, words[3], 0, print_piece, NULL), "query");
    need(free_dialog(dialog), "free");
    need(free_config(config), "config free");
    putchar('\n');
    return 0;
}
