// OpenMPI's side of the all_reduce rows: mpirun -np N all_reduce_mpi BYTES ROUNDS, which prints `reduce_us t t ...`. The input is freshly
// written before each operation, as in the other programs.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const long numel = argc == 3 ? atol(argv[1]) / 4 : 0;
  const int rounds = argc == 3 ? atoi(argv[2]) : 0;
  if (numel < 1 || rounds < 1) {
    if (rank == 0) fprintf(stderr, "usage: all_reduce_mpi BYTES ROUNDS\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  float* data = calloc((size_t)numel, sizeof(float));
  if (rank == 0) printf("reduce_us");
  for (int round = -3; round < rounds; ++round) {
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = 0; i < numel; ++i) data[i] = (float)round;
    const double written = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, data, (int)numel, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double end = MPI_Wtime();
    if (data[numel - 1] != (float)(ranks * round)) {
      fprintf(stderr, "wrong sum: %f in round %d\n", data[numel - 1], round);
      MPI_Abort(MPI_COMM_WORLD, 70);
    }
    if (rank == 0 && round >= 0) printf(" %.2f", (end - written) * 1e6);
  }
  if (rank == 0) printf("\n");
  free(data);
  return MPI_Finalize();
}
