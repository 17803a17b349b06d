package state

import (
	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// KindOf returns the kind of an object, or "" if objects of its type are not stored.
func KindOf(o Object) Kind {
	switch o.(type) {
	case *v1.Cluster:
		return KindCluster
	case *v1.Node:
		return KindNode
	case *v1.Workload:
		return KindWorkload
	case *v1.Revision:
		return KindRevision
	case *v1.Replica:
		return KindReplica
	case *v1.Token:
		return KindToken
	case *v1.Event:
		return KindEvent
	case *statev1.Authority:
		return KindAuthority
	case *statev1.Credential:
		return KindCredential
	case *statev1.Receipt:
		return KindReceipt
	case *v1.Login:
		return KindLogin
	case *statev1.Password:
		return KindPassword
	case *v1.Server:
		return KindServer
	case *statev1.Revocation:
		return KindRevocation
	case *v1.Configuration:
		return KindConfiguration
	case *statev1.GossipKey:
		return KindGossipKey
	case *statev1.Tag:
		return KindTag
	case *v1.Namespace:
		return KindNamespace
	case *statev1.Mark:
		return KindMark
	}
	return ""
}

// wrap puts an object into its alternative; the result is empty if objects of its type are not stored.
func wrap(o Object) *statev1.Object {
	switch o := o.(type) {
	case *v1.Cluster:
		return &statev1.Object{Kind: &statev1.Object_Cluster{Cluster: o}}
	case *v1.Node:
		return &statev1.Object{Kind: &statev1.Object_Node{Node: o}}
	case *v1.Workload:
		return &statev1.Object{Kind: &statev1.Object_Workload{Workload: o}}
	case *v1.Revision:
		return &statev1.Object{Kind: &statev1.Object_Revision{Revision: o}}
	case *v1.Replica:
		return &statev1.Object{Kind: &statev1.Object_Replica{Replica: o}}
	case *v1.Token:
		return &statev1.Object{Kind: &statev1.Object_Token{Token: o}}
	case *v1.Event:
		return &statev1.Object{Kind: &statev1.Object_Event{Event: o}}
	case *statev1.Authority:
		return &statev1.Object{Kind: &statev1.Object_Authority{Authority: o}}
	case *statev1.Credential:
		return &statev1.Object{Kind: &statev1.Object_Credential{Credential: o}}
	case *statev1.Receipt:
		return &statev1.Object{Kind: &statev1.Object_Receipt{Receipt: o}}
	case *v1.Login:
		return &statev1.Object{Kind: &statev1.Object_Login{Login: o}}
	case *statev1.Password:
		return &statev1.Object{Kind: &statev1.Object_Password{Password: o}}
	case *v1.Server:
		return &statev1.Object{Kind: &statev1.Object_Server{Server: o}}
	case *statev1.Revocation:
		return &statev1.Object{Kind: &statev1.Object_Revocation{Revocation: o}}
	case *v1.Configuration:
		return &statev1.Object{Kind: &statev1.Object_Configuration{Configuration: o}}
	case *statev1.GossipKey:
		return &statev1.Object{Kind: &statev1.Object_GossipKey{GossipKey: o}}
	case *statev1.Tag:
		return &statev1.Object{Kind: &statev1.Object_Tag{Tag: o}}
	case *v1.Namespace:
		return &statev1.Object{Kind: &statev1.Object_Namespace{Namespace: o}}
	case *statev1.Mark:
		return &statev1.Object{Kind: &statev1.Object_Mark{Mark: o}}
	}
	return &statev1.Object{}
}

// unwrap takes an object out of its alternative; kind is "" if there is none or one that is not known here.
func unwrap(wrapped *statev1.Object) (Kind, Object) {
	switch o := wrapped.GetKind().(type) {
	case *statev1.Object_Cluster:
		return KindCluster, o.Cluster
	case *statev1.Object_Node:
		return KindNode, o.Node
	case *statev1.Object_Workload:
		return KindWorkload, o.Workload
	case *statev1.Object_Revision:
		return KindRevision, o.Revision
	case *statev1.Object_Replica:
		return KindReplica, o.Replica
	case *statev1.Object_Token:
		return KindToken, o.Token
	case *statev1.Object_Event:
		return KindEvent, o.Event
	case *statev1.Object_Authority:
		return KindAuthority, o.Authority
	case *statev1.Object_Credential:
		return KindCredential, o.Credential
	case *statev1.Object_Receipt:
		return KindReceipt, o.Receipt
	case *statev1.Object_Login:
		return KindLogin, o.Login
	case *statev1.Object_Password:
		return KindPassword, o.Password
	case *statev1.Object_Server:
		return KindServer, o.Server
	case *statev1.Object_Revocation:
		return KindRevocation, o.Revocation
	case *statev1.Object_Configuration:
		return KindConfiguration, o.Configuration
	case *statev1.Object_GossipKey:
		return KindGossipKey, o.GossipKey
	case *statev1.Object_Tag:
		return KindTag, o.Tag
	case *statev1.Object_Namespace:
		return KindNamespace, o.Namespace
	case *statev1.Object_Mark:
		return KindMark, o.Mark
	}
	return "", nil
}
