// Vision transformers, for the list of networks.
#ifndef LOCKSTEP_MODELS_NETWORKS_VIT_H_
#define LOCKSTEP_MODELS_NETWORKS_VIT_H_

#include <vector>

#include "models/networks/networks.h"

namespace lockstep {

std::vector<NetworkEntry> VisionTransformers();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_VIT_H_
