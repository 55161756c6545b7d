// The training program of a separate project.
//
//   troupe launch --nproc 2 build/train --epochs 4 --hidden 32
//
// expect: a line every ten steps, and a held-out loss below 0.05.
#include "wave.hpp"

int main(int argc, char** argv) { return troupe::run(argc, argv, job()); }
