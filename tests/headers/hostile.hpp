// Macros that other people's headers define. No name of the library may be one of them.
#define A 1
#define B 1
#define C 1
#define D 1
#define E 1
#define F 1
#define G 1
#define H 1
#define I 1
#define J 1
#define K 1
#define L 1
#define M 1
#define N 1
#define O 1
#define P 1
#define Q 1
#define R 1
#define S 1
#define T 1
#define U 1
#define V 1
#define W 1
#define X 1
#define Y 1
#define Z 1
#define B0 1
#define CHECK 1
#define REQUIRE 1
#define small char
#define near
#define far
#define interface struct
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) < (b) ? (b) : (a))
