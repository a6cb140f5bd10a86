// LeNet, with and without batch norm, for the list of networks.
#ifndef LOCKSTEP_MODELS_NETWORKS_LENET_H_
#define LOCKSTEP_MODELS_NETWORKS_LENET_H_

#include <vector>

#include "models/networks/networks.h"

namespace lockstep {

std::vector<NetworkEntry> LeNets();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_LENET_H_
