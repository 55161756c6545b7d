#include "tensor_io/checkpoint/pickle.hpp"

#include <cstring>
#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {

// Python's stack machine (pickletools documents it), as far as torch.save and LibTorch use it.
class Pickle::Machine {
 public:
  Machine(std::string_view bytes, std::deque<PickleValue>& values,
          const std::function<void(const std::string&)>& refuse)
      : bytes_(bytes), values_(values), refuse_(refuse) {}

  const PickleValue* run() {
    for (;;) {
      const auto opcode = take<std::uint8_t>();
      if (opcode == '.') return pop();
      step(opcode);
    }
  }

 private:
  using Values = std::vector<PickleValue*>;

  void step(std::uint8_t opcode) {
    switch (opcode) {
      case 0x80:
        if (const int protocol = take<std::uint8_t>(); protocol != 2)
          refuse("protocol " + std::to_string(protocol) + ", Troupe reads 2");
        return;
      case 'N': return push(PickleKind::none);
      case 0x88: return push(PickleKind::number, 1);
      case 0x89: return push(PickleKind::number, 0);
      case 'K': return push(PickleKind::number, take<std::uint8_t>());
      case 'M': return push(PickleKind::number, take<std::uint16_t>());
      case 'J': return push(PickleKind::number, take<std::int32_t>());
      case 0x8a: return push(PickleKind::number, take_long());
      case 'G': take_bytes(8); return push(PickleKind::real);
      case 'X': return push(PickleKind::text, 0, take_bytes(take<std::uint32_t>()));
      case 'c': return push(PickleKind::name, 0, take_name());
      case '}': return push(PickleKind::dict);
      case ']': return push(PickleKind::list);
      case ')': return push(PickleKind::tuple);
      case '(': return marks_.push_back(stack_.size());
      case 't': return push(PickleKind::tuple, 0, {}, pop_to_mark());
      case 0x85:
      case 0x86:
      case 0x87: return push(PickleKind::tuple, 0, {}, pop(opcode - 0x84U));
      case 'a': return extend(PickleKind::list, pop(1));
      case 'e': return extend(PickleKind::list, pop_to_mark());
      case 's': return extend(PickleKind::dict, pop(2));
      case 'u': return extend(PickleKind::dict, pop_to_mark());
      case 'R':
      case 0x81: return call(pop(2));
      case 'b': return set_state(pop(1));
      case 'Q': return push(PickleKind::stored, 0, {}, pop(1));
      case 'q': return remember(take<std::uint8_t>());
      case 'r': return remember(take<std::uint32_t>());
      case 'h': return recall(take<std::uint8_t>());
      case 'j': return recall(take<std::uint32_t>());
      default: refuse("opcode " + std::to_string(opcode) + ", which Troupe does not know");
    }
  }

  [[noreturn]] void refuse(const std::string& why) const {
    refuse_("offset " + std::to_string(at_) + " of its pickle: " + why);
    throw Error(ErrorCode::internal, "reading a pickle", why);
  }

  std::string_view take_bytes(std::size_t count) {
    if (count > bytes_.size() - at_) refuse("it ends too early");
    return bytes_.substr(std::exchange(at_, at_ + count), count);
  }
  template <class Number>
  Number take() {
    Number number;
    std::memcpy(&number, take_bytes(sizeof number).data(), sizeof number);
    return number;
  }
  std::int64_t take_long() {
    const auto bytes = take_bytes(take<std::uint8_t>());
    if (bytes.size() > 8) refuse("a number of more than 64 bits");
    std::int64_t number = !bytes.empty() && (bytes.back() & 0x80) != 0 ? -1 : 0;
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  std::string_view take_name() {
    const auto first = bytes_.find('\n', at_);
    const auto second = first == bytes_.npos ? first : bytes_.find('\n', first + 1);
    if (second == bytes_.npos) refuse("a name without an end");
    const auto name = take_bytes(second - at_);
    take_bytes(1);
    return name;
  }

  void push(PickleKind kind, std::int64_t number = 0, std::string_view text = {}, Values items = {}) {
    if (values_.size() == kMaxValues) refuse("more than " + std::to_string(kMaxValues) + " values");
    stack_.push_back(&values_.emplace_back(PickleValue{kind, number, text, std::move(items)}));
  }
  // What lies before a mark is not there until the mark is gone.
  std::size_t height() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  PickleValue* top() const {
    if (height() == 0) refuse("nothing is on its stack");
    return stack_.back();
  }
  PickleValue* pop() {
    auto* value = top();
    stack_.pop_back();
    return value;
  }
  Values pop(std::size_t count) {
    if (height() < count) refuse("too little is on its stack");
    Values values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }
  Values pop_to_mark() {
    if (marks_.empty()) refuse("a mark is missing");
    auto values = pop(height());
    marks_.pop_back();
    return values;
  }

  // Of an object, which is not read, nothing is kept; nor of what an OrderedDict has beside its items (`_metadata` of a
  // state_dict).
  void set_state(const Values&) {
    if (!top()->is(PickleKind::call) && !top()->is(PickleKind::dict)) refuse("a state for something else");
  }
  void extend(PickleKind kind, const Values& items) {
    auto* target = top();
    if (target->is(PickleKind::call)) return;
    if (!target->is(kind) || (kind == PickleKind::dict && items.size() % 2 != 0)) refuse("items for something else");
    target->items.insert(target->items.end(), items.begin(), items.end());
  }
  void call(Values function_and_arguments) {
    if (!function_and_arguments[0]->is(PickleKind::name) || !function_and_arguments[1]->is(PickleKind::tuple))
      refuse("a call of something that is not a function");
    if (function_and_arguments[0]->text == "collections\nOrderedDict" && function_and_arguments[1]->items.empty())
      return push(PickleKind::dict);
    push(PickleKind::call, 0, {}, std::move(function_and_arguments));
  }

  // Writers count from 0 on.
  void remember(std::size_t place) {
    if (place > memo_.size()) refuse("a memo with a gap");
    if (place == memo_.size()) memo_.push_back(nullptr);
    memo_[place] = top();
  }
  void recall(std::size_t place) {
    if (place >= memo_.size()) refuse("a memo that is empty");
    stack_.push_back(memo_[place]);
  }

  const std::string_view bytes_;
  std::size_t at_ = 0;
  std::deque<PickleValue>& values_;
  const std::function<void(const std::string&)>& refuse_;
  Values stack_, memo_;
  std::vector<std::size_t> marks_;
};

Pickle::Pickle(std::string bytes, const std::function<void(const std::string&)>& refuse)
    : bytes_(std::move(bytes)), root_(Machine(bytes_, values_, refuse).run()) {}

}  // namespace troupe
