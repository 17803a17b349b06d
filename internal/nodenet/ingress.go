package nodenet

import (
	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// ingressPart is the part of the table with the ports of the ingress.
const ingressPart = "ingress"

// SetIngress names the ports at which the ingress of this node answers: replicas may connect to them as anybody outside
// may, unless their egress rules forbid it. Of each port, protocol and number of the machine count.
func (n *Network) SetIngress(ports []Port) error {
	var part *nft.Part
	if len(ports) > 0 {
		part = &nft.Part{}
		for _, p := range ports {
			part.Elements = append(part.Elements, nft.Element{Set: setIngress, Key: portElement(portKey{protocol: p.Protocol, number: p.Host})})
		}
	}
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	return n.write(map[string]*nft.Part{ingressPart: part})
}

// toIngress decides about what replicas send to the ports of the ingress.
func toIngress() nft.Chain {
	return nft.Chain{Name: chainToIngress, Rules: append(lookUpSender(nil, setEgress), accept)}
}
