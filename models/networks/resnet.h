// ResNets, for the list of networks: as the d2l book describes them, and as
// torchvision has them.
#ifndef LOCKSTEP_MODELS_NETWORKS_RESNET_H_
#define LOCKSTEP_MODELS_NETWORKS_RESNET_H_

#include <vector>

#include "models/networks/networks.h"

namespace lockstep {

std::vector<NetworkEntry> D2lResNets();
std::vector<NetworkEntry> ResNets();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_RESNET_H_
