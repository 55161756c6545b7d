#pragma once
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

}  // namespace troupe
