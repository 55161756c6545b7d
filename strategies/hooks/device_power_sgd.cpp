#include "strategies/hooks/device_power_sgd.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "strategies/hooks/power_sgd_kernels.hpp"

namespace troupe {
namespace {

// Of each of `grams`, PᵀP (matrices, rank, rank) f64, the matrix T (the same) with P T orthonormal. Gram-Schmidt's
// steps on the coefficients of the columns, each against all before it, twice, which is as good as one by one.
at::Tensor triangles_of(const at::Tensor& grams) {
  const auto rank = grams.size(1);
  auto triangles = at::zeros_like(grams);
  const auto transposed = triangles.transpose(1, 2);
  for (std::int64_t k = 0; k < rank; ++k) {
    auto column = at::zeros({grams.size(0), rank, 1}, grams.options());
    column.select(1, k).fill_(1);
    for (int pass = 0; pass < 2; ++pass) column = column.sub(triangles.bmm(transposed.bmm(grams.bmm(column))));
    const auto before = grams.select(1, k).select(1, k);
    const auto after = column.mul(grams.bmm(column)).sum(at::IntArrayRef{1, 2});
    // f32 input: what is left below 1e-12 of the square is rounding, not a direction.
    const auto scale = at::where(after.gt(before.mul(1e-12)).logical_and(after.gt(0)), after.rsqrt(), 0.0);
    triangles.select(2, k).copy_(column.squeeze(2).mul(scale.unsqueeze(1)));
  }
  return triangles;
}

}  // namespace

void orthonormalise_columns(const std::vector<at::Tensor>& p) {
  if (p.empty()) return;
  std::int64_t rank = 0;
  for (const auto& matrix : p) rank = std::max(rank, matrix.size(1));
  std::vector<at::Tensor> wide;
  auto grams = at::zeros({static_cast<std::int64_t>(p.size()), rank, rank}, p.front().options().dtype(at::kDouble));
  const auto part = [&](const at::Tensor& of_all, std::size_t i) {
    return of_all.select(0, static_cast<std::int64_t>(i)).narrow(0, 0, p[i].size(1)).narrow(1, 0, p[i].size(1));
  };
  for (std::size_t i = 0; i < p.size(); ++i) {
    wide.push_back(p[i].to(at::kDouble));
    part(grams, i).copy_(wide.back().t().mm(wide.back()));
  }
  const auto triangles = triangles_of(grams);
  for (std::size_t i = 0; i < p.size(); ++i) p[i].copy_(wide[i].mm(part(triangles, i)));
}

at::Tensor start_rows(std::int64_t rank, std::int64_t columns, std::uint64_t seed, c10::Device device) {
  auto rows = at::zeros({rank, columns}, at::kFloat);
  fill_zero_rows(rows.data_ptr<float>(), rank, columns, seed);
  return rows.to(device);
}

void fill_zero_rows(const at::Tensor& q, const at::Tensor& start) {
  q.copy_(at::where(q.eq(0).all(1, /*keepdim=*/true), start, q));
}

}  // namespace troupe
