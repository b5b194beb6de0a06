// A QNN host in C++, without Python of its own: threads, exceptions, and objects that are destroyed late.
//
// usage: host LIBRARY
#include <cstdint>
#include <cstdio>
#include <dlfcn.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using word = std::uint64_t;
using handle = void *;

static void **table;

template <typename... Arguments> static void need(const char *what, int place, Arguments... arguments)
{
    word code = reinterpret_cast<word (*)(Arguments...)>(table[place])(arguments...);
    if (code)
        throw std::runtime_error(std::string(what) + " answered " + std::to_string(code));
}

// Freed by the destructor of a static, after main and after whatever the library registered.
struct Backend {
    handle held = nullptr;
    ~Backend()
    {
        if (held)
            reinterpret_cast<word (*)(handle)>(table[8])(held);
    }
};

static Backend backend;

static void work(handle device)
{
    for (int turn = 0; turn < 3; turn++) {
        handle context = nullptr;
        need("contextCreate", 9, backend.held, device, static_cast<handle>(nullptr), &context);
        need("contextFree", 14, context, static_cast<handle>(nullptr));
    }
}

int main(int count, char **words)
try {
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library)
        throw std::runtime_error("the library cannot be loaded");
    auto providers = reinterpret_cast<word (*)(void ****, std::uint32_t *)>(dlsym(library, "QnnInterface_getProviders"));
    void ***list = nullptr;
    std::uint32_t found = 0;
    if (!providers || providers(&list, &found) || found != 1)
        throw std::runtime_error("there is no provider");
    table = reinterpret_cast<void **>(list[0]) + 5;
    need("backendCreate", 1, static_cast<handle>(nullptr), static_cast<handle>(nullptr), &backend.held);
    handle device = nullptr;
    need("deviceCreate", 40, static_cast<handle>(nullptr), static_cast<handle>(nullptr), &device);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back(work, device);
    for (auto &thread : threads)
        thread.join();
    try {
        need("contextFree", 14, device, static_cast<handle>(nullptr)); // a handle of another kind
        throw std::logic_error("a device was freed as a context");
    } catch (const std::runtime_error &) {
    }
    need("deviceFree", 43, device);
    dlclose(library);
    std::puts("a C++ host without Python ends well");
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
