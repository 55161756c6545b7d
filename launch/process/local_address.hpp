#pragma once
#include <netdb.h>

#include <memory>
#include <string>

namespace troupe {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
/// getaddrinfo's, for streams. nullptr: there are none, and `failure` has the reason.
Addresses look_up(const std::string& name, const char* service, int family, int flags, int& failure);

/// The IPv4 address of `host`, a name or an address. Throws Error(unavailable) if the name does not resolve,
/// Error(usage) if there is an IPv6 address alone.
std::string ipv4_address_of(const std::string& host);

/// A line on standard error if `host`, by which others reach this machine, is a loopback address here.
void note_loopback_name(const std::string& host, const std::string& address);

/// This machine's address from which `host` is reached; loopback for loopback. Throws as ipv4_address_of,
/// and Error(unavailable) if there is no way to it.
std::string local_address_towards(const std::string& host, int port);

}  // namespace troupe
