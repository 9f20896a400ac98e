/* Stands in for libze_loader.so.1: two cards of two tiles, joined by two Xe Links. Structures as in
 * the Level Zero specification 1.x. ZE_STANDIN=none: no driver; crash: as a broken driver would. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t stype; void *next; uint32_t type, vendor, device, flags, subdevice, clock;
                 uint64_t max_alloc; uint32_t counts[7]; uint64_t resolution; uint32_t bits[2];
                 uint8_t uuid[16]; char name[256]; } device_properties;
typedef struct { uint32_t stype; void *next; uint32_t domain, bus, device, function;
                 int32_t generation, width; int64_t bandwidth; } pci_properties;
typedef struct { uint32_t stype; void *next; uint32_t flags, clock, width; uint64_t size;
                 char name[256]; } memory_properties;
typedef struct { uint32_t fabric, attach; uint8_t port; } port_id;
typedef struct { int64_t rate; int32_t width; } speed;
typedef struct { uint32_t stype; void *next; char model[256]; uint8_t on_subdevice;
                 uint32_t subdevice; port_id id; speed rx, tx; } port_properties;
typedef struct { uint32_t stype; void *next; uint32_t status, quality, failure; port_id remote;
                 speed rx, tx; } port_state;

typedef struct { uint32_t card, tile; uint8_t number; uint32_t status; port_id remote; } port;

static int card[2] = {0, 1}, tiles[4], driver;
/* Of each card: two to the other card, one between its own tiles, one that is down. */
static port ports[2][4] = {
    {{0, 0, 1, 1, {1, 0, 1}}, {0, 1, 1, 2, {1, 1, 1}}, {0, 0, 2, 1, {0, 1, 2}}, {0, 1, 3, 4, {1, 1, 3}}},
    {{1, 0, 1, 1, {0, 0, 1}}, {1, 1, 1, 1, {0, 1, 1}}, {1, 0, 2, 1, {1, 1, 2}}, {1, 1, 3, 4, {0, 1, 3}}},
};

static int list(uint32_t *count, void **out, void *items, size_t size, uint32_t number) {
    if (out == NULL) { *count = number; return 0; }
    for (uint32_t i = 0; i < *count && i < number; i++) out[i] = (char *)items + i * size;
    return 0;
}

int zeInit(uint32_t flags) {
    const char *how = getenv("ZE_STANDIN");
    if (how && strcmp(how, "crash") == 0) abort();
    if (how && strcmp(how, "none") == 0) return 0x78000001;
    /* What the caller has to set for whole cards. */
    const char *hierarchy = getenv("ZE_FLAT_DEVICE_HIERARCHY");
    if (!hierarchy || strcmp(hierarchy, "COMPOSITE") || getenv("ZE_AFFINITY_MASK")) return 1;
    return flags == 1 ? 0 : 1;
}
int zeDriverGet(uint32_t *count, void **out) { return list(count, out, &driver, sizeof driver, 1); }
int zeDeviceGet(void *from, uint32_t *count, void **out) {
    return from == &driver ? list(count, out, card, sizeof *card, 2) : 1;
}
int zeDeviceGetSubDevices(void *device, uint32_t *count, void **out) {
    return list(count, out, tiles + *(int *)device * 2, sizeof *tiles, 2);
}
int zeDeviceGetProperties(void *device, device_properties *out) {
    if (out->stype != 0x3) return 1;
    for (int i = 0; i < 16; i++) out->uuid[i] = (uint8_t)(16 * *(int *)device + i);
    strcpy(out->name, "Intel(R) Data Center GPU Max 1550");
    return 0;
}
int zeDevicePciGetPropertiesExt(void *device, pci_properties *out) {
    if (out->stype != 0x10008) return 1;
    out->bus = *(int *)device ? 0x6c : 0x18;
    return 0;
}
int zeDeviceGetMemoryProperties(void *device, uint32_t *count, memory_properties *out) {
    if (out == NULL) { *count = 2; return 0; }
    for (uint32_t i = 0; i < *count; i++) out[i].size = out[i].stype == 0x7 ? 64ull << 30 : 0;
    return 0;
}
int zesDeviceEnumFabricPorts(void *device, uint32_t *count, void **out) {
    if (!getenv("ZES_ENABLE_SYSMAN")) return 1;
    return list(count, out, ports[*(int *)device], sizeof(port), 4);
}
int zesFabricPortGetProperties(void *handle, port_properties *out) {
    port *own = handle;
    if (out->stype != 0x6) return 1;
    out->id = (port_id){own->card, own->tile, own->number};
    return 0;
}
int zesFabricPortGetState(void *handle, port_state *out) {
    port *own = handle;
    if (out->stype != 0x19) return 1;
    out->status = own->status;
    out->remote = own->remote;
    return 0;
}
