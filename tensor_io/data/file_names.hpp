#pragma once
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

namespace troupe {

/// ASCII letters alone.
std::string in_small_letters(std::string text);

/// The parts of a data set, by the names that Hugging Face's `datasets` knows (data_files.py): train and training;
/// validation, valid, val and dev; test, testing, eval and evaluation. Capital letters count as small ones.
enum class PartName { none, train, validation, test };

/// `name` is one of these words.
PartName part_named(const std::string& name);
/// The first of these words in `name`, with digits or one of - . _ and spaces around it: "seg_train", "val-000.tar".
PartName part_in_name(const std::string& name);

/// Files that a reader does not read, counted by kind: their extension in small letters, "hidden", "without extension".
class PassedOver {
 public:
  /// `name`: a path; only the part after its last / counts.
  void add(const std::string& name);
  void add_all(const PassedOver& other);
  std::int64_t count() const;
  /// Of these kinds.
  std::int64_t count(std::initializer_list<const char*> kinds) const;
  /// "20 files passed over (.bmp 18, hidden 2)", the most frequent kinds first; empty if there are none.
  std::string to_string() const;

 private:
  std::map<std::string, std::int64_t> kinds_;
};

}  // namespace troupe
