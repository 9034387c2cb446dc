#!/bin/sh
# The first process of a User Mode Linux whose root is this machine's: an NFS server and two clients.
# $FOLDER is the test's; it runs `$PYTHON $PROGRAM` with mounts of one export at /mnt/one and /mnt/two.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
for folder in /run /mnt /var/lib/nfs; do mount -t tmpfs tmp "$folder"; done
mkdir -p "$FOLDER/root/lib" /run/rpcbind /run/sendsigs.omit.d /mnt/export /mnt/one /mnt/two
mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
ln -sfn /usr/lib/uml/modules "$FOLDER/root/lib/modules"
for module in sunrpc nfsd nfsv4 loop ext4; do modprobe -d "$FOLDER/root" "$module"; done
ip link set lo up
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc /var/lib/nfs/rpc_pipefs
# A file system that counts its changes, as those of servers do; tmpfs has only a clock of 10 ms.
dd if=/dev/zero of=/mnt/disk bs=1M count=100 2>/dev/null
mkfs.ext4 -q /mnt/disk
mount -o loop /mnt/disk /mnt/export
rpcbind -w
exportfs -o rw,no_root_squash,insecure,fsid=0,no_subtree_check 127.0.0.1:/mnt/export
rpc.mountd
rpc.nfsd 4
for mount in one two; do
    mount -t nfs -o vers=4.2,hard,nosharecache 127.0.0.1:/ /mnt/$mount || echo "no NFS"
done
cd "$ROOT" && timeout 200 "$PYTHON" "$FOLDER/program.py" > "$FOLDER/output" 2>&1
poweroff -f
