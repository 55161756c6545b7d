#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launch/hosts/host_list.hpp"

namespace troupe {

struct SshOptions {
  std::vector<std::string> extra_arguments;  ///< for instance {"-F", "cluster.config"}; they come before our defaults,
                                             ///< and ssh takes the first
  std::string working_directory;             ///< on the host, absolute; empty: the login's
  std::map<std::string, std::string> environment;
};

/// The argv that runs `command` on `host` through OpenSSH, without questions on a terminal. No shell reads it here; the
/// host's login shell reads one word, in which every word of `command` is quoted. The process that runs there replaces
/// that shell, so that signals and the end of standard input reach it.
///
/// It is public: every user of either host may read it. Secrets go over standard input, and a variable whose name looks
/// like a secret's is refused. Throws Error(usage).
std::vector<std::string> ssh_command(const Host& host, const std::vector<std::string>& command,
                                     const SshOptions& options = {});

/// `word` as a login shell reads it back: sh, bash, dash, zsh, ksh, fish, and (without newlines) csh. Throws
/// Error(usage) for a NUL byte.
std::string quote_for_shell(std::string_view word);

/// The part of `all` that a job's ranks need on every host: its settings (TROUPE_*), and the variables of LibTorch,
/// OpenMP and NCCL. Throws Error(usage) for a setting that looks like a secret's: without it the hosts would differ.
std::map<std::string, std::string> environment_of_host(const std::map<std::string, std::string>& all);

/// Whether a variable's name contains token, secret, password, credential or key.
bool looks_secret(std::string_view variable);

}  // namespace troupe
