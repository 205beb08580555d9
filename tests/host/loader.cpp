// Loads shared objects, each of them program.cpp with its main as `library_main`, and runs each: loader MODE LAUNCHES
// LIBRARY...
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  for (int i = 3; i < argc; ++i) {
    void* library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 2;
    const auto run = reinterpret_cast<int (*)(int, char**)>(dlsym(library, "library_main"));
    if (run == nullptr || run(3, argv) != 0) return 3;
  }
  return 0;
}
