"""Pictures by a generator against a discriminator: three backwards and two optimizers' steps an iteration."""

import torch
from own_clock import num_iterations, phase
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

NZ, WIDTH, NUM_EPOCHS = 16, 32, 2


def weights_init(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(NZ, WIDTH * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(WIDTH * 4), nn.ReLU(True),
            nn.ConvTranspose2d(WIDTH * 4, WIDTH * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH * 2), nn.ReLU(True),
            nn.ConvTranspose2d(WIDTH * 2, WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(True),
            nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(WIDTH, WIDTH * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH * 2), nn.LeakyReLU(0.2),
            nn.Conv2d(WIDTH * 2, WIDTH * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH * 4), nn.LeakyReLU(0.2),
            nn.Conv2d(WIDTH * 4, 1, 4, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x).view(-1, 1).squeeze(1)


torch.manual_seed(999)
device = torch.device("cpu")
dataloader = DataLoader(TensorDataset(torch.randn(64, 3, 32, 32)), batch_size=16, shuffle=True)
netG, netD = Generator().to(device), Discriminator().to(device)
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(16, NZ, 1, 1, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

for epoch in range(NUM_EPOCHS):
    for i, (pictures,) in enumerate(dataloader):
        num_iterations["train"] += 1
        # the discriminator, with real pictures and with false ones
        netD.zero_grad()
        real = pictures.to(device)
        label = torch.full((real.size(0),), 1.0, device=device)
        with phase("forward"):
            output = netD(real)
        errD_real = criterion(output, label)
        with phase("backward"):
            errD_real.backward()
        noise = torch.randn(real.size(0), NZ, 1, 1, device=device)
        with phase("forward"):
            fake = netG(noise)
        label.fill_(0.0)
        with phase("forward"):
            output = netD(fake.detach())
        errD_fake = criterion(output, label)
        with phase("backward"):
            errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()
        # the generator
        netG.zero_grad()
        label.fill_(1.0)
        with phase("forward"):
            output = netD(fake)
        errG = criterion(output, label)
        with phase("backward"):
            errG.backward()
        optimizerG.step()
        print(f"[{epoch}/{NUM_EPOCHS}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
with torch.no_grad():
    num_iterations["infer"] += 1
    print(netG(fixed_noise).shape)
