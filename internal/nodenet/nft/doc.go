// Package nft keeps one nftables table as its owner describes it. The description has parts, and a change rewrites
// only the parts that changed, in one transaction. A table that another program changed is found out and written anew.
//
// It must not know what the rules are for.
package nft
