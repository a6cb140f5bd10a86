// Multilayer perceptrons, for the list of networks.
#ifndef LOCKSTEP_MODELS_NETWORKS_MLP_H_
#define LOCKSTEP_MODELS_NETWORKS_MLP_H_

#include <vector>

#include "models/networks/networks.h"

namespace lockstep {

std::vector<NetworkEntry> Perceptrons();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_MLP_H_
