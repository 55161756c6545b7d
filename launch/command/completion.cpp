#include "launch/command/completion.hpp"

#include <string_view>
#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

// What the scripts offer: each list once, put in where its name stands.
constexpr std::pair<std::string_view, std::string_view> kLists[] = {
    {"@verbs@",
     "launch doctor debug checkpoint report top ps attach drain keys config new completion help --help --version"},
    {"@checkpoint@", "ls inspect verify convert"},
    {"@config@", "reference dump"},
    {"@completion@", "bash zsh fish"},
};

constexpr const char* kBash = R"sh(# troupe's completion for bash: source <(troupe completion bash)
_troupe() {
  local program=${COMP_WORDS[0]} verb=${COMP_WORDS[1]-} word=${COMP_WORDS[COMP_CWORD]} words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="@verbs@"
  else
    case $word in
      -*) words=$("$program" "$verb" --help 2>/dev/null | grep -oE -- '(^|[^a-zA-Z0-9-])--[a-z][a-z-]*' | grep -oE -- '--.*' | sort -u) ;;
    esac
    if [ "$COMP_CWORD" -eq 2 ]; then
      case $verb in
        checkpoint) words="$words @checkpoint@" ;;
        config) words="$words @config@" ;;
        completion) words="$words @completion@" ;;
      esac
    fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [ "$COMP_CWORD" -eq 1 ] || [ "${#COMPREPLY[@]}" -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _troupe troupe
)sh";

constexpr const char* kZsh = R"sh(# troupe's completion for zsh: source <(troupe completion zsh)
_troupe() {
  local -a all
  local program=${words[1]} verb=${words[2]-} word=${words[CURRENT]}
  if (( CURRENT == 2 )); then
    all=(@verbs@)
  else
    if [[ $word == -* ]]; then
      all=(${(f)"$($program $verb --help 2>/dev/null | grep -oE -- '(^|[^a-zA-Z0-9-])--[a-z][a-z-]*' | grep -oE -- '--.*' | sort -u)"})
    fi
    if (( CURRENT == 3 )); then
      case $verb in
        checkpoint) all+=(@checkpoint@) ;;
        config) all+=(@config@) ;;
        completion) all+=(@completion@) ;;
      esac
    fi
  fi
  compadd -- $all
  (( CURRENT == 2 )) || [[ $word == -* ]] || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u }
compdef _troupe troupe
)sh";

constexpr const char* kFish = R"sh(# troupe's completion for fish: troupe completion fish | source
complete -c troupe -n __fish_use_subcommand -f -a '@verbs@'
complete -c troupe -n '__fish_seen_subcommand_from checkpoint' -a '@checkpoint@'
complete -c troupe -n '__fish_seen_subcommand_from config' -f -a '@config@'
complete -c troupe -n '__fish_seen_subcommand_from completion' -f -a '@completion@'
complete -c troupe -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' \
  -a '(set -l words (commandline -opc); $words[1] $words[2] --help 2>/dev/null | string match -ra -- "(?<![a-zA-Z0-9-])--[a-z][a-z-]*" | sort -u)'
)sh";

std::string with_lists(std::string script) {
  for (const auto& [name, words] : kLists) {
    for (auto at = script.find(name); at != std::string::npos; at = script.find(name, at + words.size()))
      script.replace(at, name.size(), words);
  }
  return script;
}

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return with_lists(kBash);
  if (shell == "zsh") return with_lists(kZsh);
  if (shell == "fish") return with_lists(kFish);
  throw Error(ErrorCode::usage, "troupe completion", "'" + shell.substr(0, 40) + "' is not bash, zsh or fish",
              "source <(troupe completion bash)");
}

}  // namespace troupe
