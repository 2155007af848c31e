// The C++17 part of a program: it knows the library only through a header of its own.
#include "trainer.hpp"

static_assert(__cplusplus < 202002L);

int main() { return library_major() == 0 ? 0 : 1; }
