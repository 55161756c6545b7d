#include "actors/messages/messages.hpp"
