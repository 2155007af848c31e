// What the C++17 part sees.
#pragma once

int library_major();
