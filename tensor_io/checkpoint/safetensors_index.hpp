#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe {

/// The safetensors files of somebody else's folder that make up one model, and which of them has which tensor.
struct SafetensorsIndex {
  std::string path;                            ///< of Hugging Face's index; empty if there is none
  std::map<std::string, std::string> file_of;  ///< tensor -> file name, as the index says
  std::set<std::string> files;                 ///< names in the folder
  std::vector<std::string> absent;  ///< that their names let expect, though a rank may have had nothing to write
  std::vector<std::string> notes;   ///< what was passed over, a sentence each

  /// How many tensors the index has in that file.
  std::size_t tensors_in(const std::string& file) const;
};

/// As Hugging Face's transformers reads a folder: `model.safetensors` if it is there; else the files that an index
/// (`*.safetensors.index.json`) lists; without an index all of them, of which `x-00002-of-00003.safetensors` says how
/// many there are. Throws Error(bad_data) that names a file which is missing, an index that is damaged, two indexes,
/// a rank's file of a checkpoint without its manifest.
SafetensorsIndex index_of_folder(const std::string& folder);

/// Whether a folder that is no checkpoint of ours holds safetensors files, or an index of them.
bool holds_safetensors(const std::string& folder);

/// Throws Error(bad_data) if a folder is another format's checkpoint, which Troupe knows by name only: the usual way to
/// safetensors files is the remedy.
void refuse_foreign_checkpoint(const std::string& folder);

/// For a line: the names in quotes, at most five of them.
std::string names_text(const std::vector<std::string>& names);

}  // namespace troupe
