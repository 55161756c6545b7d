#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// CPUs by number, in ascending order, each once.
using CpuList = std::vector<int>;

/// A list as Linux writes it, `0-15,32-47`, with or without an end of line; empty for an empty text. Nothing for any
/// other text, or a number above 65,535. Pure.
std::optional<CpuList> parse_cpu_list(std::string_view text);
/// The same as a text: `0-15,32-47`. Pure.
std::string cpu_list_text(const CpuList& cpus);

/// The CPUs near a device, or why there are none.
struct NearCpus {
  CpuList cpus;
  std::string problem;  ///< empty: `cpus` has some
};

/// Where Linux describes devices of the PCI bus.
inline constexpr const char* kPciDevices = "/sys/bus/pci/devices";

/// Those of `allowed` near the device at this PCI address (`0000:18:00.0`), by its files `numa_node` and
/// `local_cpulist` in the folder `devices`. None if the kernel knows no node for it (-1), the list is missing or empty,
/// or it shares no CPU with `allowed`.
NearCpus near_cpus(const std::string& address, const CpuList& allowed, const std::string& devices = kPciDevices);

/// The CPUs that the calling thread may use. Empty if the system does not say.
CpuList allowed_cpus();
/// The calling thread, and threads that it starts later, run on these CPUs only. Throws Error(unavailable) if the
/// system refuses.
void bind_thread(const CpuList& cpus);

}  // namespace troupe
