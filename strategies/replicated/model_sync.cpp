#include "strategies/replicated/model_sync.hpp"

#include <cmath>
#include <cstring>
#include <map>

#include "tensor_io/files/xxh3.hpp"

namespace troupe {

double norm_over_ranks(double own_squares, Communicator& communicator) {
  auto all = at::zeros({communicator.world_size()}, at::kDouble);
  communicator.all_gather(all, at::full({1}, own_squares, at::kDouble), "gradient norm");
  double sum = 0;  // in the order of ranks: the same bits everywhere
  for (int r = 0; r < communicator.world_size(); ++r) sum += all[r].item<double>();
  return std::sqrt(sum);
}

bool true_anywhere(bool mine, Communicator& communicator, const char* what) {
  const auto any = at::full({1}, mine, at::kInt);
  communicator.all_reduce(any, ReduceOp::max, what);
  return any.item<int>() != 0;
}

void agree_on_layout(std::span<const ParameterLayout> layout, Communicator& communicator) {
  const auto all = communicator.all_gather_bytes(layout_text(layout), "layout");
  for (int r = 1; r < communicator.world_size(); ++r) {
    const auto difference = layout_difference(all[0], 0, all[static_cast<std::size_t>(r)], r);
    if (!difference.empty()) {
      throw Error(ErrorReport{ErrorCode::mismatch, r, "compute", -1, "distribute", difference,
                              "build the same model on every rank"});
    }
  }
}

void broadcast_tensors(const NamedTensors& tensors, Communicator& communicator, const char* what) {
  torch::NoGradGuard no_grad;
  Xxh3Stream stream;
  for (const auto& [name, tensor] : tensors) {
    auto flat = tensor.detach();
    const bool direct = flat.is_contiguous();
    if (!direct) flat = flat.contiguous();
    communicator.broadcast(flat.view(-1), 0, what);
    if (!direct) tensor.detach().copy_(flat);
    const auto bytes = flat.cpu();  // itself, where it is there
    stream.update({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  const std::uint64_t hash = stream.take();
  const auto hashes = communicator.all_gather_bytes({reinterpret_cast<const char*>(&hash), sizeof hash}, what);
  for (int r = 1; r < communicator.world_size(); ++r) {
    if (hashes[static_cast<std::size_t>(r)] != hashes[0]) {
      throw Error(ErrorReport{ErrorCode::mismatch, r, "compute", -1, std::string("broadcast of ") + what,
                              "rank " + std::to_string(r) + " holds other values than rank 0 after the broadcast",
                              "check the memory and network of its host"});
    }
  }
}

NamedTensors means_over_ranks(const NamedTensors& tensors, Communicator& communicator, const char* what) {
  torch::NoGradGuard no_grad;
  NamedTensors means;
  for (const auto& [name, tensor] : tensors) {
    auto value = tensor.detach().clone(at::MemoryFormat::Contiguous);
    if (value.is_floating_point() && value.numel() > 0) communicator.all_reduce(value.view(-1), ReduceOp::avg, what);
    means.emplace_back(name, std::move(value));
  }
  return means;
}

FlatBuffers::FlatBuffers(const torch::nn::Module& model) {
  torch::NoGradGuard no_grad;
  std::map<at::ScalarType, NamedTensors> by_dtype;
  for (const auto& item : model.named_buffers()) {
    if (item.value().defined() && item.value().numel() > 0)
      by_dtype[item.value().scalar_type()].emplace_back(item.key(), item.value());
  }
  for (auto& [dtype, buffers] : by_dtype) {
    const std::int64_t line = 64 / static_cast<std::int64_t>(c10::elementSize(dtype));
    std::int64_t numel = 0;
    for (const auto& [name, buffer] : buffers) numel += (buffer.numel() + line - 1) / line * line;
    auto flat = at::zeros({numel}, buffers.front().second.options());
    const auto before = at::zeros_like(flat);
    std::int64_t offset = 0;
    for (auto& [name, buffer] : buffers) {
      auto view = flat.narrow(0, offset, buffer.numel()).view(buffer.sizes());
      view.copy_(buffer);
      before_by_name_.emplace_back(name, before.narrow(0, offset, buffer.numel()).view(buffer.sizes()));
      buffer.set_data(view);
      offset += (buffer.numel() + line - 1) / line * line;
    }
    flats_.push_back(flat);
    before_.push_back(before);
    staged_.push_back(flat.clone());
  }
  begin();
}

void FlatBuffers::broadcast(Communicator& communicator) {
  for (const auto& flat : flats_) communicator.broadcast(flat, 0, "buffers");
}

void FlatBuffers::begin() {
  is_staged_ = false;
  for (std::size_t i = 0; i < flats_.size(); ++i) before_[i].copy_(flats_[i]);
}

void FlatBuffers::stage(Communicator& communicator) {
  for (std::size_t i = 0; i < flats_.size(); ++i) {
    if (communicator.rank() == 0) staged_[i].copy_(flats_[i]);
    communicator.broadcast(staged_[i], 0, "buffers");
  }
  is_staged_ = true;
}

void FlatBuffers::commit() {
  for (std::size_t i = 0; is_staged_ && i < flats_.size(); ++i) flats_[i].copy_(staged_[i]);
  begin();
}

void FlatBuffers::commit_unless(const at::Tensor& skip) {
  if (flats_.empty()) return;
  const auto goes_back = skip.to(at::kBool);
  for (std::size_t i = 0; i < flats_.size(); ++i)
    flats_[i].copy_(at::where(goes_back, before_[i], is_staged_ ? staged_[i] : flats_[i]));
  begin();
}

void FlatBuffers::roll_back() {
  for (std::size_t i = 0; i < flats_.size(); ++i) flats_[i].copy_(before_[i]);
  is_staged_ = false;
}

}  // namespace troupe
