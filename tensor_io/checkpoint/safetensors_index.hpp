#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe {

/// The safetensors files of a foreign folder that make up one model, and the tensors in each.
struct SafetensorsIndex {
  std::string path;                            ///< of Hugging Face's index; empty if there is none
  std::map<std::string, std::string> file_of;  ///< tensor -> file name, as the index says
  std::set<std::string> files;                 ///< names in the folder
  std::vector<std::string> absent;  ///< expected by the other names, though a rank may have had nothing to write
  std::vector<std::string> notes;   ///< on files passed over, a sentence each

  /// The number of tensors that the index has in that file.
  std::size_t tensors_in(const std::string& file) const;
};

/// As Hugging Face's transformers reads a folder: `model.safetensors` if it is there; else the files that an index
/// (`*.safetensors.index.json`) lists; without an index all of them. A name like `x-00002-of-00003.safetensors` gives
/// their number. Throws Error(bad_data) for a missing file, with its name, a damaged index, two indexes, a rank's file
/// of a checkpoint without its manifest.
SafetensorsIndex index_of_folder(const std::string& folder);

/// Whether a folder that is no checkpoint of ours holds safetensors files, or an index of them.
bool holds_safetensors(const std::string& folder);

/// Throws Error(bad_data) if a folder is a checkpoint of another format that Troupe knows only by name. The remedy is
/// the usual way to safetensors files.
void refuse_foreign_checkpoint(const std::string& folder);

/// For a line: the names in quotes, at most five of them.
std::string names_text(const std::vector<std::string>& names);

}  // namespace troupe
